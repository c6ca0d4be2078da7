"""What must agree between the keys of a manifest: names, widths, vocabularies, files.

Each check raises `BundleInvalid` naming the graph, the key and both values. Reads no files.
"""

from collections import Counter
from collections.abc import Iterable
from pathlib import PurePosixPath

from specruntime.drafts import DraftSpec
from specruntime.manifest.contracts import TARGET, Contract
from specruntime.manifest.draft import check_room
from specruntime.manifest.graph import GraphSpec, Profile
from specruntime.manifest.refusals import refuse
from specruntime.manifest.schema import AdaptiveSpec, Manifest
from specruntime.manifest.tensor_checks import check_tensors


def check_manifest(manifest: Manifest) -> None:
    """Raise `BundleInvalid` for the first disagreement."""
    target, draft = manifest.target, manifest.draft.own_graph
    check_graph("target", target, TARGET)
    if target.drafted != 1:
        refuse(f"target drafts {target.drafted} tokens a launch, expected top_ids of one column a row")
    if draft is not None:
        contract = manifest.draft.contract
        assert contract is not None, "a kind with a graph says what it looks like"
        check_graph("draft", draft, contract)
        if draft.batch_sizes != target.batch_sizes:
            refuse(
                f"draft.batch_sizes: found {list(draft.batch_sizes)}, expected those of the target, "
                f"{list(target.batch_sizes)}"
            )
    manifest.draft.check(target)
    if manifest.draft.nodes:
        check_room(manifest.draft.width_key, manifest.draft.nodes, target)
    if manifest.adaptive is not None:
        _check_adaptive(manifest.adaptive, target, manifest.draft)
    for token in manifest.eos_token_ids:
        if token >= target.vocab_size:
            refuse(f"eos_token_ids has {token}, but the vocabulary has {target.vocab_size} tokens")
    for name in _files_used(manifest):
        if name not in manifest.files:
            refuse(f"{name!r} is used but has no entry under 'files', so its bytes cannot be checked")
    for label, graph in (("target", target), *((("draft", draft),) if draft is not None else ())):
        graph.engine.check_files(label, manifest.files)


def check_graph(label: str, graph: GraphSpec, contract: Contract) -> None:
    """Check one graph; `label` is the key it is found under."""
    sizes = graph.batch_sizes
    if list(sizes) != sorted({1, graph.batch, *sizes}) or sizes[-1] != graph.batch:
        refuse(
            f"{label}.batch_sizes: found {list(sizes)}, expected ascending sizes from 1 to {label}.batch, "
            f"which is {graph.batch}"
        )
    _unique(f"{label}.inputs", (tensor.name for tensor in graph.inputs))
    _unique(f"{label}.outputs", (tensor.name for tensor in graph.outputs))
    _unique(f"{label}.profiles", (profile.name for profile in graph.profiles))
    _unique(f"{label}.aliases", (pair.output for pair in graph.aliases))
    check_tensors(label, graph, contract)
    _check_profiles(label, graph, contract)
    _check_weights(label, graph)
    graph.engine.check(label, graph)
    if graph.vocab_size > graph.padded_vocab_size:
        refuse(
            f"{label}.vocab_size is {graph.vocab_size}, above {label}.padded_vocab_size "
            f"{graph.padded_vocab_size}"
        )


def _check_profiles(label: str, graph: GraphSpec, contract: Contract) -> None:
    for profile in graph.profiles:
        if profile.width > graph.capacity:
            refuse(
                f"{label}: profile {profile.name!r} is {profile.width} wide, above the capacity {graph.capacity}"
            )
        if profile.rows > profile.width:
            refuse(
                f"{label}: profile {profile.name!r} has {profile.rows} rows in a window of {profile.width}"
            )
        _check_outputs(label, graph, profile)
    judging = [profile for profile in graph.profiles if profile.computes("top_ids")]
    if contract.stepping and graph.drafted == 1 and all(p.width != 1 for p in judging):
        refuse(f"{label} has no profile of width 1, so it cannot decode up to its capacity")


def _check_outputs(label: str, graph: GraphSpec, profile: Profile) -> None:
    if profile.outputs is None:
        if profile.file is not None:
            refuse(
                f"{label}: profile {profile.name!r} has a file of its own, expected it to list its outputs"
            )
        return
    if not graph.engine.runs_parts:
        refuse(
            f"{label}: profile {profile.name!r} lists outputs, but {graph.engine.kind} computes them all; expected null"
        )
    _unique(f"{label}: outputs of profile {profile.name!r}", profile.outputs)
    known = {tensor.name for tensor in graph.outputs}
    if odd := [name for name in profile.outputs if name not in known]:
        refuse(f"{label}: profile {profile.name!r} computes {odd[0]!r}, which is not an output of the graph")


def _check_weights(label: str, graph: GraphSpec) -> None:
    """Check where weights lie: a library reads none from outside the directory of a graph's file."""
    for name in graph.weights:
        if PurePosixPath(graph.file).parent not in PurePosixPath(name).parents or name == graph.file:
            refuse(
                f"{label}.weights: found {name!r}, expected files in the directory of {graph.file!r} or below it"
            )
    if graph.weights and not graph.engine.reads_weights:
        refuse(
            f"{label}.weights: found with {graph.engine.kind}, whose engine holds its weights; expected none"
        )


def _files_used(manifest: Manifest) -> Iterable[str]:
    yield from _graph_files(manifest.target)
    if (graph := manifest.draft.own_graph) is not None:
        yield from _graph_files(graph)
    if manifest.tokenizer is not None:
        yield manifest.tokenizer.file
        if manifest.tokenizer.chat_template is not None:
            yield manifest.tokenizer.chat_template


def _graph_files(graph: GraphSpec) -> Iterable[str]:
    yield graph.file
    yield from graph.weights
    yield from (profile.file for profile in graph.profiles if profile.file is not None)
    yield from graph.engine.files(graph)


def _check_adaptive(adaptive: AdaptiveSpec, target: GraphSpec, draft: DraftSpec) -> None:
    if not draft.nodes:
        refuse(
            f"adaptive is given with a draft of kind {draft.kind}, expected a draft whose length can follow it"
        )
    lookup = adaptive.lookup
    if lookup is not None:
        if draft.free:
            refuse(
                f"adaptive.lookup is given with a draft of kind {draft.kind}, which is prompt lookup; expected one "
                "of them"
            )
        lookup.check_lengths("adaptive.lookup")
        check_room("adaptive.lookup.k", lookup.k, target)
    for key, times, profiles in (
        ("step_ms", adaptive.step_ms, target.profiles),
        ("draft_ms", adaptive.draft_ms, draft.timed_profiles(target)),
    ):
        named = {profile.name for profile in profiles}
        if odd := sorted(times.keys() - named):
            refuse(
                f"adaptive.{key} names {odd[0]!r}, expected one of {', '.join(sorted(named)) or 'no name'}"
            )


def _unique(key: str, names: Iterable[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        refuse(f"{key} names {twice[0]!r} twice")
