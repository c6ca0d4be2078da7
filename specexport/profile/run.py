"""The whole profile of a bundle."""

from collections.abc import Callable
from pathlib import Path

from specexport.bench.machine import describe_machine, threads_of
from specexport.profile.operators import WindowProfile, profile_windows
from specexport.profile.report import ProfileReport
from specexport.profile.rounds import profile_rounds
from specruntime.bundle import load_manifest
from specruntime.engines import EngineOptions
from specruntime.summary import graphs_of

Advance = Callable[[str], None]


def profile_bundle(
    bundle: Path,
    *,
    threads: int | None = None,
    max_new_tokens: int = 64,
    advance: Advance = lambda step: None,
) -> ProfileReport:
    """Raises `InvalidArgument` for a bundle of another engine than ONNX Runtime, and what opening raises."""
    manifest = load_manifest(bundle)
    threads = threads_of(manifest.target, threads)
    options = EngineOptions(threads=threads)
    windows: list[WindowProfile] = []
    for name, graph in graphs_of(manifest).items():
        advance(f"taking the {name}'s windows apart")
        windows += profile_windows(name, graph, bundle, options)
    advance("answering the check prompts")
    rounds = profile_rounds(bundle, options, max_new_tokens)
    return ProfileReport(str(bundle), describe_machine(threads), rounds, tuple(windows))
