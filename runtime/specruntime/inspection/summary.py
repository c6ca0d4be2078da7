"""What is in a bundle, from its manifest and build record alone: no engine is opened.

Owns the sizes that follow from the manifest (weights, KV cache). Megabytes are 10^6 bytes.
"""

from math import prod
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, NonNegativeInt, ValidationError

from specruntime.engines.kernels import asked_kernels, find_kernels
from specruntime.engines.prepacked import installed_version, unfit
from specruntime.errors import BundleInvalid, SpecError
from specruntime.manifest.files import read_regular
from specruntime.manifest.graph import over_operators
from specruntime.manifest.schema import GraphSpec, Manifest, PrepackedWeights, prepacked_of, window_of
from specruntime.manifest.tensor_checks import BYTES

BUILD_RECORD_NAME = "build.json"
MAX_RECORD_BYTES = 64 * 2**20

_Bytes = Annotated[int, Field(ge=0, le=2**63 - 1)]


class _Record(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)


class ParityRecord(_Record):
    """How far the logits were from PyTorch's."""

    model_config = ConfigDict(extra="allow")

    logit_difference: FiniteFloat
    tokens: NonNegativeInt
    tolerance: FiniteFloat


class EngineSummary(_Record):
    """What the compiler made of the graph: names of nodes and layers, sizes."""

    engine_bytes: _Bytes
    weights_bytes: _Bytes
    compiled_layers: NonNegativeInt
    fused_attention: list[str]
    unfused_attention: list[str]
    kv_cache_updates: list[str]
    cache_copies: list[str]


class EngineRecord(_Record):
    report: EngineSummary | None = None


class PassRecord(_Record):
    """What one pass over the graph changed, and what it has to say of that."""

    name: str
    reasons: list[str] = []


class GraphRecord(_Record):
    """One graph's build; all of it may be absent."""

    checkpoint: str | None = None
    parity: ParityRecord | None = None
    engine: EngineRecord | None = None
    passes: list[PassRecord] = []
    warnings: list[str] = []
    step_ms: dict[str, FiniteFloat] | None = None
    step_ms_reason: str | None = None


class BuildRecord(_Record):
    """All that is read of `build.json`."""

    versions: dict[str, Any] = {}
    graphs: dict[str, GraphRecord] = {}


def read_build_record(root: Path) -> BuildRecord:
    """`build.json` of the bundle at `root`; empty where it is absent, not a regular file or cannot be parsed."""
    try:
        return BuildRecord.model_validate_json(read_regular(root, BUILD_RECORD_NAME, MAX_RECORD_BYTES))
    except (OSError, BundleInvalid, ValidationError):
        return BuildRecord()


_MB = 1e6


def graphs_of(manifest: Manifest) -> dict[str, GraphSpec]:
    """Return the compiled graphs by role: "target", and "draft" where the draft has one of its own."""
    draft = manifest.draft.own_graph
    return {"target": manifest.target} | ({} if draft is None else {"draft": draft})


def weight_bytes(manifest: Manifest, graph: GraphSpec) -> int:
    """Bytes of the graph's file and of those stored next to its weights. Weights that it shares with another graph are
    that one's. Packed weights that were saved with them are left out: in memory they replace the plain
    ones. So are the files of the same graph over the operators of `specruntime-kernels`, unless `graph` is that one."""
    directory, packed, window = graph.weights_directory, prepacked_of(graph), window_of(graph)
    if window is not None and graph.file == window.file:
        names = {window.file, window.weights[0], *window.paths.values()}
        return sum(manifest.files[name].bytes for name in names)
    own = {name: file for name, file in manifest.files.items() if directory in PurePosixPath(name).parents}
    own[graph.file] = manifest.files[graph.file]
    if window is not None:
        own = {name: file for name, file in own.items() if name not in window.files}
    if packed is None:
        return sum(record.bytes for record in own.values())
    return sum(record.bytes for name, record in own.items() if name != packed.file) - packed.bytes


def opened_here(graph: GraphSpec) -> GraphSpec:
    """Return the graph that this host would open: over the operators of `specruntime-kernels` where they run."""
    return over_operators(graph) if kernels_here(graph)[0] is not None else graph


def kernels_here(graph: GraphSpec) -> tuple[str | None, str | None]:
    """Return the instruction-set path that the graph's operators would run on here, else why they do not run."""
    window = window_of(graph)
    if window is None:
        return None, "the bundle has no graph for them"
    try:
        return find_kernels(window, asked_kernels(None)).path, None
    except SpecError as error:
        return None, str(error)


def cache_bytes(graph: GraphSpec) -> int:
    """Bytes of one session's KV cache."""
    cached = {pair.input for pair in graph.aliases}
    sizes = {"B": 1}
    return sum(
        BYTES[tensor.dtype] * prod(sizes[d] if isinstance(d, str) else d for d in tensor.shape)
        for tensor in graph.inputs
        if tensor.name in cached
    )


def summarise(manifest: Manifest, root: Path) -> dict[str, Any]:
    """JSON-ready: identity, graphs with sizes and widths, step times and parity where `build.json` records them."""
    record = read_build_record(root)
    return {
        "name": manifest.name,
        "producer": manifest.producer,
        "schema_version": manifest.schema_version,
        "precision": manifest.precision,
        "draft": manifest.draft.model_dump(mode="json", exclude={"graph"}),
        "graphs": {
            role: _describe(manifest, graph, record.graphs.get(role, GraphRecord()))
            for role, graph in graphs_of(manifest).items()
        },
        "bundle_mb": sum(file.bytes for file in manifest.files.values()) / _MB,
        "tokenizer": manifest.tokenizer is not None,
        "chat_template": manifest.tokenizer is not None and manifest.tokenizer.chat_template is not None,
        "eos_token_ids": list(manifest.eos_token_ids),
        "check": {"prompts": len(manifest.check.prompts), "max_new_tokens": manifest.check.max_new_tokens},
        "versions": record.versions,
    }


def _describe(manifest: Manifest, graph: GraphSpec, built: GraphRecord) -> dict[str, Any]:
    return {
        "checkpoint": built.checkpoint,
        "layers": graph.layers,
        "vocab_size": graph.vocab_size,
        "padded_vocab_size": graph.padded_vocab_size,
        "capacity": graph.capacity,
        "batch": graph.batch,
        "batch_sizes": list(graph.batch_sizes),
        "engine": graph.engine.model_dump(mode="json"),
        "profiles": [profile.model_dump() for profile in graph.profiles],
        "weights_mb": weight_bytes(manifest, graph) / _MB,
        "shared_weights": list(graph.weights[1:]),
        "prepacked": _describe_packed(prepacked_of(graph)),
        "kernels": _describe_kernels(manifest, graph),
        "kv_mb": cache_bytes(graph) / _MB,
        "step_ms": built.step_ms or {},
        "step_ms_reason": built.step_ms_reason,
        "stored_weights": next(
            (
                found.reasons[-1]
                for found in built.passes
                if found.name == "quantize-weights" and found.reasons
            ),
            None,
        ),
        "warnings": built.warnings,
        "engine_report": _describe_engine(built.engine.report if built.engine else None),
        "parity": built.parity.model_dump(exclude={"layer_difference"}) if built.parity else {},
    }


def _describe_packed(packed: PrepackedWeights | None) -> dict[str, Any] | None:
    """Return what they hold, and whether this host uses them; None where the bundle has none."""
    if packed is None:
        return None
    reason = unfit(packed, installed_version())
    return {"mb": packed.bytes / _MB, "used_here": reason is None, "reason": reason}


def _describe_kernels(manifest: Manifest, graph: GraphSpec) -> dict[str, Any] | None:
    """Return what the graph over the operators of `specruntime-kernels` holds, and which path runs it here."""
    window = window_of(graph)
    if window is None:
        return None
    path, reason = kernels_here(graph)
    opened = over_operators(graph)
    return {
        "file": window.file,
        "mb": weight_bytes(manifest, opened) / _MB,
        "kv_mb": cache_bytes(opened) / _MB,
        "cache": window.cache,
        "exact": window.exact,
        "path": path,
        "reason": reason,
    }


def _describe_engine(report: EngineSummary | None) -> dict[str, Any] | None:
    """Return the compiler's report in numbers; None where no engine was compiled."""
    if report is None:
        return None
    return {
        "engine_mb": report.engine_bytes / _MB,
        "weights_mb": report.weights_bytes / _MB,
        "compiled_layers": report.compiled_layers,
        "fused_attention": len(report.fused_attention),
        "unfused_attention": len(report.unfused_attention),
        "kv_cache_updates": len(report.kv_cache_updates),
        "cache_copies": len(report.cache_copies),
        "first_unfused_attention": next(iter(report.unfused_attention), None),
    }


def shown_size(megabytes: float) -> str:
    """In the largest unit that leaves something before the point."""
    if megabytes >= 10_000:
        return f"{megabytes * 1e-3:.1f} GB"
    if megabytes >= 1:
        return f"{megabytes:.1f} MB"
    return f"{megabytes * 1e3:.1f} kB" if megabytes >= 1e-3 else f"{megabytes * 1e6:.0f} bytes"


def render_summary(summary: dict[str, Any]) -> str:
    """Return the summary as lines for people."""
    lines = [
        f"{summary['name']}   {summary['precision']}, {summary['producer']}, schema {summary['schema_version']}"
    ]
    for role, graph in summary["graphs"].items():
        lines += _render_graph(role, graph)
    lines += _render_draft(summary["draft"])
    text = (
        "chat template"
        if summary["chat_template"]
        else "plain text"
        if summary["tokenizer"]
        else "token ids only"
    )
    lines.append(f"text     {text}; end tokens {summary['eos_token_ids']}")
    lines.append(f"size     {shown_size(summary['bundle_mb'])} on disk")
    check = summary["check"]
    lines.append(f"check    {check['prompts']} prompts, {check['max_new_tokens']} new tokens each")
    return "\n".join(lines)


def _render_draft(draft: dict[str, Any]) -> list[str]:
    options = _shown_options({key: value for key, value in draft.items() if key not in ("kind", "tapped")})
    lines = [f"drafts   {draft['kind']}{': ' + options if options else ''}"]
    if tapped := draft.get("tapped"):
        layers = ", ".join(map(str, tapped["entering"]))
        lines.append(f"         on what enters layers {layers} of the target ({tapped['reason']})")
    return lines


def _shown_options(options: dict[str, Any]) -> str:
    """Those that are set, as words: `k 4, fused, tree of 9 nodes`."""
    shown = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        if isinstance(value, dict) and ("parents" in value or "nodes" in value):
            nodes = len(value["parents"]) if "parents" in value else value["nodes"]
            rest = f", branch {value['branch']}" if "branch" in value else ""
            shown.append(f"{name} of {nodes} nodes{rest}")
        else:
            shown.append(name if value is True else f"{name} {value}")
    return ", ".join(shown)


def _render_graph(role: str, graph: dict[str, Any]) -> list[str]:
    engine = graph["engine"]
    padding = (
        f" ({graph['padded_vocab_size']} padded)" if graph["padded_vocab_size"] != graph["vocab_size"] else ""
    )
    weights = shown_size(graph["weights_mb"]) + "".join(f" and some of {n}" for n in graph["shared_weights"])
    lines = [
        f"{role:8} {graph['checkpoint'] or 'checkpoint not recorded'}",
        f"         {graph['layers']} layers, vocabulary {graph['vocab_size']}{padding}, capacity {graph['capacity']}, "
        f"batch {'/'.join(map(str, graph['batch_sizes']))}, {engine['kind']}",
        f"         weights {weights}, KV cache {shown_size(graph['kv_mb'])} per session",
        *([f"         {graph['stored_weights']}"] if graph["stored_weights"] else []),
        *_render_packed(graph["prepacked"]),
        *_render_kernels(graph["kernels"]),
        "         widths " + ", ".join(f"{p['name']} {p['width']}" for p in graph["profiles"]),
    ]
    if graph["step_ms"]:
        times = ", ".join(f"{width}: {ms:.1f} ms" for width, ms in graph["step_ms"].items())
        lines.append(f"         step at build {times}")
    elif graph["step_ms_reason"]:
        lines.append(f"         steps not timed: {graph['step_ms_reason']}")
    if report := graph["engine_report"]:
        lines += _render_engine(report)
    lines += [f"         warning: {line}" for line in graph["warnings"]]
    if parity := graph["parity"]:
        lines.append(
            f"         logits within {parity['logit_difference']:.1e} of PyTorch over {parity['tokens']} tokens "
            f"(tolerance {parity['tolerance']:.1e})"
            + (", computed in float32" if parity.get("widened") else "")
        )
    return lines


def _render_packed(packed: dict[str, Any] | None) -> list[str]:
    if packed is None:
        return []
    use = "used here" if packed["used_here"] else f"packed again at open here: {packed['reason']}"
    return [f"         packed weights {shown_size(packed['mb'])} on disk, {use}"]


def _render_kernels(kernels: dict[str, Any] | None) -> list[str]:
    if kernels is None:
        return []
    use = f"run here on {kernels['path']}" if kernels["path"] else f"not used here: {kernels['reason']}"
    sizes = f"weights {shown_size(kernels['mb'])}, {kernels['cache']} KV cache {shown_size(kernels['kv_mb'])}"
    return [f"         own operators {use}; {sizes} per session"]


def _render_engine(report: dict[str, Any]) -> list[str]:
    ratio = f" ({report['engine_mb'] / report['weights_mb']:.2f}x)" if report["weights_mb"] else ""
    lines = [
        f"         engine {shown_size(report['engine_mb'])}, {shown_size(report['weights_mb'])} of weights{ratio}, "
        f"{report['fused_attention']} attentions fused, {report['kv_cache_updates']} KV caches updated in place"
    ]
    if report["unfused_attention"]:
        lines.append(
            f"         warning: {report['unfused_attention']} attentions did not fuse "
            f"(first: {report['first_unfused_attention']})"
        )
    if report["cache_copies"]:
        lines.append(
            f"         warning: {report['cache_copies']} of {report['compiled_layers']} compiled layers read a whole "
            "KV cache and write a tensor of the same size"
        )
    return lines
