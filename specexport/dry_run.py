"""Estimates what a build would take and make, from recipe, config and tokenizer alone. Reads no weights.

Sizes follow from the shapes of the model and are within a few percent; int4 of a checkpoint that was stored in mixed
4-bit formats keeps some layers in 8 bits, which adds up to a sixth. Memory and time of a build are scaled from the
measured build of SmolLM2-135M (README: 30 layers, 0.54 GB, two cores, 1.4 GB and 56 s): rough estimates.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from specexport.backends import backend_of
from specexport.bundle.writer import check_output, default_output
from specexport.cache.contents import cache_limit
from specexport.context import Announce
from specexport.recipe.schema import Recipe
from specexport.recipe.sources import naming_source
from specexport.recipe.weights import EngineWeights
from specexport.tokenizer.files import TEMPLATE_FILE
from specruntime.inspection.summary import shown_size

if TYPE_CHECKING:
    from specexport.checkpoints.outline import Outline

_BYTES = {"fp32": 4.0, "fp16": 2.0, "bf16": 2.0}
_STORED = {"int8": 1.0, "int4": 0.5, "fp8": 1.0, "int4-awq": 0.5, "nvfp4": 0.5}
_SCALE_BYTES = 4
_MB, _GB = 1e6, 1e9
# Two copies of the weights (PyTorch's and the graph's), and the libraries.
_BUILD_COPIES, _LIBRARY_BYTES = 2, 0.35e9
_START_SECONDS, _SECONDS_PER_LAYER, _SECONDS_PER_GB = 8.0, 1.2, 22.0


def estimate(recipe: Recipe, output: Path | None, announce: Announce) -> dict[str, Any]:
    """Return what `specexport build` would make of `recipe`, JSON-ready; sizes in MB of 10^6 bytes, seconds on two
    cores.

    Raises whatever the build would raise for want of no more than recipe, config and tokenizer.
    """
    output = output or default_output(recipe)
    check_output(output)
    cache_limit()  # one that cannot be read is refused
    backend_of(recipe.backend).check_machine(recipe)
    announce("loading PyTorch")
    from specexport.checkpoints.outline import outline_recipe

    recipe, outlines = outline_recipe(recipe, weights=False)
    if recipe.draft.checkpoint is None:
        with naming_source("draft"):
            recipe.draft.digest("")  # its files are there
    graphs = {side: _graph(recipe, side, outline) for side, outline in outlines.items()}
    weights = sum(graph["weights_mb"] for graph in graphs.values())
    caches = sum(graph["kv_cache_mb"] or 0.0 for graph in graphs.values())
    loaded = sum(outline.skeleton.weight_elements for outline in outlines.values()) * _BYTES[recipe.precision]
    return {
        "bundle": str(output),
        "name": recipe.name,
        "builds": True,
        "backend": recipe.backend.kind,
        "precision": recipe.shown_precision,
        "draft_kind": recipe.draft.kind,
        "capacity": recipe.capacity,
        "draft_capacity": recipe.draft_capacity if "draft" in outlines else None,
        "verify_widths": list(recipe.verify_widths),
        "graphs": graphs,
        "bundle_mb": weights * (2 if recipe.backend.copies_weights else 1),
        "run_memory_mb": weights + caches,
        "build_memory_mb": (_BUILD_COPIES * loaded + _LIBRARY_BYTES) / _MB,
        "build_seconds": None if recipe.backend.compiles else _seconds(outlines, loaded),
        "notes": [f"{outline.name}: {note}" for outline in outlines.values() for note in outline.notes],
        "open": [*_open(recipe, outlines)],
    }


def _graph(recipe: Recipe, side: str, outline: "Outline") -> dict[str, Any]:
    shape, width = outline.skeleton, _BYTES[recipe.precision]
    layout = shape.layout
    token = None if layout is None else sum(
        2 * heads * size * width for heads, size in zip(layout.kv_heads, layout.head_dim, strict=True)
    )  # fmt: skip
    return {
        "checkpoint": outline.name,
        "architecture": shape.model_type,
        "layers": None if layout is None else layout.layers,
        "parameters": shape.weight_elements,
        "weights_mb": _weight_bytes(recipe, side, outline) / _MB,
        "kv_bytes_per_token": token,
        "kv_cache_mb": None if token is None else token * outline.facts.capacity / _MB,
        "tokenizer": outline.tokenizer is not None,
        "chat_template": outline.tokenizer is not None and (outline.tokenizer / TEMPLATE_FILE).is_file(),
        "rope": shape.rope,
    }


def _weight_bytes(recipe: Recipe, side: str, outline: "Outline") -> float:
    """Linear layers and LM head in their formats with a scale per block, all else in the recipe's precision."""
    shape, width = outline.skeleton, _BYTES[recipe.precision]
    integers = recipe.weights_of(side)
    stored = {"linear": width, "head": width}
    if integers is not None:
        plan = integers.plan()
        for part, layer in (("linear", plan.linear), ("head", plan.lm_head)):
            scale = _SCALE_BYTES / plan.block
            stored[part] = width if layer.format == "fp32" else _STORED[layer.format] + scale
    elif side == "target" and isinstance(recipe.weights, EngineWeights):
        stored["linear"] = _STORED[recipe.weights.format]
    rest = shape.weight_elements - shape.linear_elements - shape.head_elements
    return shape.linear_elements * stored["linear"] + shape.head_elements * stored["head"] + rest * width


def _seconds(outlines: dict[str, "Outline"], loaded: float) -> float:
    layers = sum(outline.facts.layers for outline in outlines.values())
    return _START_SECONDS + _SECONDS_PER_LAYER * layers + _SECONDS_PER_GB * loaded / _GB


def _open(recipe: Recipe, outlines: dict[str, "Outline"]) -> list[str]:
    """Return what only the build can tell, in words."""
    left = ["whether the weights fit the config and the graph equals PyTorch is found by the build"]
    for side, outline in outlines.items():
        if outline.skeleton.untried is not None:
            left.append(
                f"{side}: its operations depend on values ({outline.skeleton.untried}), so whether it can be traced is "
                "found by the build"
            )
    if recipe.draft.source_name is not None and "draft" not in outlines:
        left.append("the draft's own files are read by the build: its sizes are not counted here")
    if recipe.backend.compiles:
        left.append(f"how long {recipe.backend.kind} compiles depends on the device and is not estimated")
    return left


def render_estimate(found: dict[str, Any]) -> str:
    """Return the estimate as lines for people."""
    lines = [
        f"{found['name']} builds, as far as recipe, config and tokenizer say",
        f"bundle   {found['bundle']}, about {shown_size(found['bundle_mb'])}: {found['precision']} for "
        f"{found['backend']}, {found['draft_kind']} draft",
        f"capacity {found['capacity']} tokens"
        + (f", the draft's {found['draft_capacity']}" if found["draft_capacity"] else ""),
    ]
    for side, graph in found["graphs"].items():
        layers = "" if graph["layers"] is None else f", {graph['layers']} layers"
        cache = graph["kv_cache_mb"]
        lines.append(
            f"{side:8} {graph['architecture']}{layers}, {graph['parameters'] / _MB:.1f} million parameters: weights "
            f"{shown_size(graph['weights_mb'])}"
            + ("" if cache is None else f", KV cache {shown_size(cache)} per sequence")
        )
        text = "chat template" if graph["chat_template"] else "tokenizer without chat template"
        lines.append(f"         {text if graph['tokenizer'] else 'no tokenizer'}")
        if graph["rope"]:
            lines.append(f"         {graph['rope']}")
    lines.append(
        f"run      about {shown_size(found['run_memory_mb'])} for one session, without the libraries"
    )
    seconds = found["build_seconds"]
    lines.append(
        f"build    about {shown_size(found['build_memory_mb'])} of memory"
        + ("" if seconds is None else f" and {seconds:.0f} s on two cores, without the time of downloads")
    )
    lines += [f"note     {line}" for line in found["notes"]]
    return "\n".join([*lines, *(f"open     {line}" for line in found["open"])])
