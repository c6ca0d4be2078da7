"""What must agree between the keys of a manifest: names, widths, vocabularies, files.

Each check raises `BundleInvalid` naming the graph, the key and both values. Reads no files.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath

from specruntime.manifest import GraphSpec, Manifest, ModelDraft, NgramDraft, NoneDraft, draft_graph
from specruntime.tensor_checks import check_tensors, refuse
from specruntime.tensorrt_spec import TensorRTEngine


def check_manifest(manifest: Manifest) -> None:
    """Raises `BundleInvalid` for the first disagreement."""
    check_graph("target", manifest.target)
    if manifest.target.drafted != 1:
        refuse(
            f"target drafts {manifest.target.drafted} tokens a launch, expected top_ids of one column a row"
        )
    draft = manifest.draft
    if (graph := draft_graph(draft)) is not None:
        check_graph("draft", graph)
    if isinstance(draft, ModelDraft):
        _check_fused_draft(draft)
    if isinstance(draft, NgramDraft) and draft.min_n > draft.max_n:
        refuse(f"draft.min_n is {draft.min_n}, above draft.max_n {draft.max_n}")
    if not isinstance(draft, NoneDraft):
        _check_draft_length(manifest.target, draft.k)
    for token in manifest.eos_token_ids:
        if token >= manifest.target.vocab_size:
            refuse(f"eos_token_ids has {token}, but the vocabulary has {manifest.target.vocab_size} tokens")
    for name in _files_used(manifest):
        if name not in manifest.files:
            refuse(f"{name!r} is used but has no entry under 'files', so its bytes cannot be checked")


def check_graph(label: str, graph: GraphSpec) -> None:
    """Checks one graph; `label` is the key it is found under."""
    if graph.batch != 1:
        refuse(f"{label}.batch: found {graph.batch}, expected 1: a session decodes one sequence")
    _unique(f"{label}.inputs", (tensor.name for tensor in graph.inputs))
    _unique(f"{label}.outputs", (tensor.name for tensor in graph.outputs))
    _unique(f"{label}.profiles", (profile.name for profile in graph.profiles))
    _unique(f"{label}.aliases", (pair.input for pair in graph.aliases))
    _unique(f"{label}.aliases", (pair.output for pair in graph.aliases))
    check_tensors(label, graph)
    _check_profiles(label, graph)
    if graph.vocab_size > graph.padded_vocab_size:
        refuse(
            f"{label}.vocab_size is {graph.vocab_size}, above {label}.padded_vocab_size "
            f"{graph.padded_vocab_size}"
        )


def _check_profiles(label: str, graph: GraphSpec) -> None:
    for profile in graph.profiles:
        if profile.width > graph.capacity:
            refuse(
                f"{label}: profile {profile.name!r} is {profile.width} wide, above the capacity {graph.capacity}"
            )
        if profile.rows > profile.width:
            refuse(
                f"{label}: profile {profile.name!r} has {profile.rows} rows in a window of {profile.width}"
            )
    if isinstance(graph.engine, TensorRTEngine):
        named = {profile.name for profile in graph.profiles}
        if odd := sorted(named ^ graph.engine.optimization_profiles.keys()):
            refuse(f"{label}: {odd[0]!r} is in only one of profiles and engine.optimization_profiles")
    if graph.drafted == 1 and all(profile.width != 1 for profile in graph.profiles):
        refuse(f"{label} has no profile of width 1, so it cannot decode up to its capacity")


def _check_fused_draft(draft: ModelDraft) -> None:
    drafted = draft.graph.drafted
    expected = draft.k if draft.fused else 1
    if drafted != expected:
        refuse(
            f"draft: its graph drafts {drafted} tokens a launch, expected {expected} (fused: {draft.fused})"
        )


def _check_draft_length(target: GraphSpec, k: int) -> None:
    judged = max(profile.rows for profile in target.profiles)
    if k + 1 > judged:
        refuse(f"draft.k is {k}, but the widest target profile judges {judged} rows, and {k + 1} are needed")


def _files_used(manifest: Manifest) -> Iterable[str]:
    yield from _graph_files(manifest.target)
    if (graph := draft_graph(manifest.draft)) is not None:
        yield from _graph_files(graph)
    if manifest.tokenizer is not None:
        yield manifest.tokenizer.file
        if manifest.tokenizer.chat_template is not None:
            yield manifest.tokenizer.chat_template


def _graph_files(graph: GraphSpec) -> Iterable[str]:
    yield graph.file
    if isinstance(graph.engine, TensorRTEngine) and graph.engine.stripped_weights_from is not None:
        yield (PurePosixPath(graph.file).parent / graph.engine.stripped_weights_from).as_posix()


def _unique(key: str, names: Iterable[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        refuse(f"{key} names {twice[0]!r} twice")
