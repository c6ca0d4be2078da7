"""What must agree between the keys of a manifest: names, cache pairs, widths, vocabularies, files.

Each check raises `BundleInvalid` naming the graph, the key and both values. Reads no files.
"""

from collections import Counter
from collections.abc import Iterable

from specruntime.bundle_files import REBUILD
from specruntime.errors import BundleInvalid
from specruntime.manifest import GraphSpec, Manifest, ModelDraft, NgramDraft, NoneDraft, TensorSpec

CACHE_RANK = 4  # [B, kv_heads, capacity, head_dim]


def check_manifest(manifest: Manifest) -> None:
    """Raises `BundleInvalid` for the first disagreement."""
    check_graph("target", manifest.target)
    draft = manifest.draft
    if isinstance(draft, ModelDraft):
        check_graph("draft", draft.graph)
        _check_fused_draft(draft)
    if isinstance(draft, NgramDraft) and draft.min_n > draft.max_n:
        _refuse(f"draft.min_n is {draft.min_n}, above draft.max_n {draft.max_n}")
    if not isinstance(draft, NoneDraft):
        _check_draft_length(manifest.target, draft.k)
    for token in manifest.eos_token_ids:
        if token >= manifest.target.vocab_size:
            _refuse(f"eos_token_ids has {token}, but the vocabulary has {manifest.target.vocab_size} tokens")
    for name in _files_used(manifest):
        if name not in manifest.files:
            _refuse(f"{name} is used but has no entry under 'files', so its bytes cannot be checked")


def check_graph(label: str, graph: GraphSpec) -> None:
    """Checks one graph; `label` is the key it is found under."""
    inputs = _by_name(f"{label}.inputs", graph.inputs)
    outputs = _by_name(f"{label}.outputs", graph.outputs)
    _unique(f"{label}.profiles", (profile.name for profile in graph.profiles))
    _unique(f"{label}.aliases", (pair.input for pair in graph.aliases))
    _unique(f"{label}.aliases", (pair.output for pair in graph.aliases))
    for pair in graph.aliases:
        if pair.input not in inputs:
            _refuse(f"{label}.aliases names {pair.input!r}, which is not an input of the graph")
        if pair.output not in outputs:
            _refuse(f"{label}.aliases names {pair.output!r}, which is not an output of the graph")
        _check_cache_pair(label, graph, inputs[pair.input], outputs[pair.output])
    _check_profiles(label, graph)
    if graph.vocab_size > graph.padded_vocab_size:
        _refuse(
            f"{label}.vocab_size is {graph.vocab_size}, above {label}.padded_vocab_size "
            f"{graph.padded_vocab_size}"
        )


def _check_cache_pair(label: str, graph: GraphSpec, past: TensorSpec, present: TensorSpec) -> None:
    for key, found, expected in (
        ("shape", list(present.shape), list(past.shape)),
        ("dtype", present.dtype, past.dtype),
    ):
        if found != expected:
            _refuse(
                f"{label}: {past.name} and {present.name} are one buffer, but their {key}s differ: "
                f"{expected} and {found}"
            )
    if len(past.shape) != CACHE_RANK or past.shape[2] != graph.capacity:
        _refuse(
            f"{label}: {past.name} has shape {list(past.shape)}, expected "
            f"[B, kv_heads, {graph.capacity}, head_dim] for capacity {graph.capacity}"
        )


def _check_profiles(label: str, graph: GraphSpec) -> None:
    for profile in graph.profiles:
        if profile.width > graph.capacity:
            _refuse(
                f"{label}: profile {profile.name!r} is {profile.width} wide, above the capacity {graph.capacity}"
            )
        if profile.rows > profile.width:
            _refuse(
                f"{label}: profile {profile.name!r} has {profile.rows} rows in a window of {profile.width}"
            )
    if graph.drafted == 1 and all(profile.width != 1 for profile in graph.profiles):
        _refuse(f"{label} has no profile of width 1, so it cannot decode up to its capacity")


def _check_fused_draft(draft: ModelDraft) -> None:
    drafted = draft.graph.drafted
    expected = draft.k if draft.fused else 1
    if drafted != expected:
        _refuse(
            f"draft: its graph drafts {drafted} tokens a launch, expected {expected} (fused: {draft.fused})"
        )


def _check_draft_length(target: GraphSpec, k: int) -> None:
    judged = max(profile.rows for profile in target.profiles)
    if k + 1 > judged:
        _refuse(f"draft.k is {k}, but the widest target profile judges {judged} rows, and {k + 1} are needed")


def _files_used(manifest: Manifest) -> Iterable[str]:
    yield manifest.target.file
    if isinstance(manifest.draft, ModelDraft):
        yield manifest.draft.graph.file
    if manifest.tokenizer is not None:
        yield manifest.tokenizer.file
        if manifest.tokenizer.chat_template is not None:
            yield manifest.tokenizer.chat_template


def _by_name(key: str, tensors: tuple[TensorSpec, ...]) -> dict[str, TensorSpec]:
    _unique(key, (tensor.name for tensor in tensors))
    return {tensor.name: tensor for tensor in tensors}


def _unique(key: str, names: Iterable[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        _refuse(f"{key} names {twice[0]!r} twice")


def _refuse(problem: str) -> None:
    raise BundleInvalid(f"the manifest contradicts itself: {problem}; {REBUILD}")
