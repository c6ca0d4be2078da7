"""The measurement itself: every mode answers every prompt, in turns, so that a slow minute hits all alike."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import sleep

from specexport.bench.machine import describe_machine, threads_of
from specexport.bench.measurement import Measurement, Mode, combine, measure_session
from specexport.bench.processes import measure_memory, measure_start
from specexport.bench.prompts import BenchPrompt, BundleText, encode_prompts
from specexport.bench.report import PYTORCH, REFERENCE, BenchReport, BundleFacts, Unfinished
from specexport.bundle.record import measure_step_times
from specexport.errors import Interrupted
from specruntime.bundle import LoadedBundle, load_manifest, open_bundle
from specruntime.engines import EngineOptions
from specruntime.errors import InvalidArgument
from specruntime.inspection.summary import graphs_of
from specruntime.manifest.schema import Manifest
from specruntime.sampling.params import SamplingParams

Advance = Callable[[str], None]
Answer = Callable[[list[int]], Measurement]
Measured = dict[tuple[str, Mode], list[Measurement]]  # by prompt and mode, a measurement per repeat
_WARM_TOKENS = 8
# OpenMP threads spin for 0.2 s after PyTorch's last operator, on cores that the next mode needs.
_SETTLE_SECONDS = 0.25


@dataclass(frozen=True)
class BenchPlan:
    """What is measured. `params.max_tokens` is set from `max_new_tokens`; without a seed one is drawn for all modes."""

    bundles: tuple[
        Path, ...
    ]  # of one target; the first one also decodes plainly and names PyTorch's checkpoint
    prompts: tuple[BenchPrompt, ...]
    max_new_tokens: int = 128
    repeat: int = 3
    params: SamplingParams = field(default_factory=SamplingParams)
    pytorch: bool = False
    threads: int | None = None  # of every mode; None: what the first bundle says, else the usable cores

    def __post_init__(self) -> None:
        object.__setattr__(self, "params", self.params.seeded())

    @property
    def steps(self) -> int:
        """How often `run_bench` calls `advance`, for bundles that draft."""
        modes = 1 + len(self.bundles) + (2 if self.pytorch else 0)
        return 3 * len(self.bundles) + (2 if self.pytorch else 0) + self.repeat * len(self.prompts) * modes


def run_bench(plan: BenchPlan, advance: Advance = lambda step: None) -> BenchReport:
    """Measure every mode on every prompt, in turns, and return the report.

    Raises what opening, decoding and, with `pytorch`, loading the checkpoint raise; `InvalidArgument` for bundles that
    share a name, or that read the prompts as other tokens; `Interrupted` with the report of what was measured where
    Ctrl-C came after the first answer.
    """
    manifests = [load_manifest(bundle) for bundle in plan.bundles]
    names = _mode_names(manifests)
    threads = threads_of(manifests[0].target, plan.threads)
    options = EngineOptions(threads=threads)
    encoded = _encode([BundleText.of(path) for path in plan.bundles], names, plan)
    if plan.pytorch:
        _require_pytorch(plan.bundles[0])
    facts = {
        name: _facts(path, manifest, options, threads, advance)
        for name, path, manifest in zip(names, plan.bundles, manifests, strict=True)
    }
    with ExitStack() as stack:
        opened = [
            stack.enter_context(open_bundle(path, options=options, verify=False)) for path in plan.bundles
        ]
        modes = _modes(plan, dict(zip(names, opened, strict=True)), encoded, threads, advance)
        measured: Measured = {}
        unfinished = None
        try:
            _in_turns(plan, modes, encoded, advance, measured)
        except KeyboardInterrupt:
            if not measured:
                raise
            unfinished = Unfinished(tuple(modes), tuple(prompt.id for prompt in plan.prompts), plan.repeat)
    runs = tuple(
        combine(prompt, mode, len(encoded[prompt.id]), measured[prompt.id, mode])
        for prompt in plan.prompts
        for mode in modes
        if (prompt.id, mode) in measured
    )
    report = BenchReport(describe_machine(threads), _settings(plan), runs, facts, unfinished)
    if unfinished is not None:
        raise Interrupted(report)
    return report


def _mode_names(manifests: Sequence[Manifest]) -> list[Mode]:
    """One bundle's mode is called after what it does; several are distinguished by name."""
    if len(manifests) == 1:
        return ["speculative"]
    names = [manifest.name for manifest in manifests]
    for name in names:
        if names.count(name) > 1 or name in (REFERENCE, *PYTORCH):
            raise InvalidArgument(
                f"{names.count(name)} bundles are called {name!r}, expected names that tell the modes apart: "
                "change `name` in a recipe and build it again"
            )
    return names


def _facts(
    path: Path, manifest: Manifest, options: EngineOptions, threads: int, advance: Advance
) -> BundleFacts:
    advance(f"measuring memory and start of {manifest.name}")
    memory = measure_memory(path, manifest, threads)
    start = measure_start(path, threads)
    advance(f"timing the widths of {manifest.name}")
    steps = _step_times(manifest, path, options)
    return BundleFacts(str(path), manifest.draft.kind, manifest.adaptive is not None, steps, memory, start)


def _require_pytorch(root: Path) -> None:
    """Before the minutes of measuring: what would refuse the checkpoint after them."""
    from specexport.pytorch_reference import require_reference

    require_reference(root)


def _encode(bundles: Sequence[BundleText], names: Sequence[Mode], plan: BenchPlan) -> dict[str, list[int]]:
    """Return the prompts' ids, which must be the same for every bundle."""
    first, *others = [encode_prompts(bundle, plan.prompts, plan.max_new_tokens) for bundle in bundles]
    for name, found in zip(names[1:], others, strict=True):
        if odd := [prompt for prompt, ids in found.items() if ids != first[prompt]]:
            raise InvalidArgument(
                f"{name} reads prompt {odd[0]} as other tokens than {names[0]}, expected bundles of one target: "
                "measure them one by one"
            )
    return first


def _step_times(manifest: Manifest, root: Path, options: EngineOptions) -> dict[str, dict[str, float]]:
    return {
        role: measure_step_times(graph, root, options=options) for role, graph in graphs_of(manifest).items()
    }


def _modes(
    plan: BenchPlan,
    bundles: dict[Mode, LoadedBundle],
    encoded: dict[str, list[int]],
    threads: int,
    advance: Advance,
) -> dict[Mode, Answer]:
    """Ways to answer, warmed up."""
    params = replace(plan.params, max_tokens=plan.max_new_tokens)
    longest = max(encoded.values(), key=len)
    first = next(iter(bundles.values()))
    advance("warming up")
    modes: dict[Mode, Answer] = {REFERENCE: _session_mode(first, False, params, longest)}
    for name, bundle in bundles.items():
        if bundle.manifest.draft.nodes:
            modes[name] = _session_mode(bundle, True, params, longest)
    if plan.pytorch:
        advance("loading the checkpoint in PyTorch")
        modes |= _pytorch_modes(plan, first, params, longest, threads, advance)
    return modes


def _session_mode(
    bundle: LoadedBundle, speculate: bool, params: SamplingParams, longest: list[int]
) -> Answer:
    session, codec = bundle.new_session(speculate=speculate), bundle.tokenizer
    measure_session(session, longest, replace(params, max_tokens=_WARM_TOKENS), codec)
    return lambda ids: measure_session(session, ids, params, codec)


def _pytorch_modes(
    plan: BenchPlan,
    bundle: LoadedBundle,
    params: SamplingParams,
    longest: list[int],
    threads: int,
    advance: Advance,
) -> dict[Mode, Answer]:
    from specexport.pytorch_reference import PytorchReference, ReferenceMode

    reference = PytorchReference.of_bundle(bundle.root, threads)

    def answer_in(mode: ReferenceMode) -> Answer:
        def answer(ids: list[int]) -> Measurement:
            found = reference.answer(ids, params, plan.max_new_tokens, mode)
            sleep(_SETTLE_SECONDS)
            return Measurement(
                found.token_ids, found.first_seconds, found.seconds, rounds=len(found.token_ids) - 1
            )

        return answer

    reference.warm_up(longest, _WARM_TOKENS, "pytorch")
    advance("compiling the checkpoint in PyTorch")
    reference.warm_up(longest, plan.max_new_tokens, "pytorch-compiled")
    return {"pytorch": answer_in("pytorch"), "pytorch-compiled": answer_in("pytorch-compiled")}


def _in_turns(
    plan: BenchPlan,
    modes: dict[Mode, Answer],
    encoded: dict[str, list[int]],
    advance: Advance,
    measured: Measured,
) -> None:
    """Add each answer to `measured` when it is whole, plain decoding of a prompt before all other modes of it."""
    for number in range(plan.repeat):
        for prompt in plan.prompts:
            for mode, answer in modes.items():
                advance(f"{prompt.id}, {mode}, {number + 1} of {plan.repeat}")
                found = answer(encoded[prompt.id])
                measured.setdefault((prompt.id, mode), []).append(found)


def _settings(plan: BenchPlan) -> dict[str, object]:
    params = plan.params
    return {
        "max_new_tokens": plan.max_new_tokens,
        "repeat": plan.repeat,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "seed": params.seed,
    }
