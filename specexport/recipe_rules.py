"""The rules between the keys of a recipe: each as a function that yields a line for every conflict.

All conflicts are told together. A value that the recipe leaves out is never called found.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import BaseModel

from specexport.recipe_backends import OnnxRuntimeBackend
from specexport.recipe_drafts import Draft, ModelDraft, NoneDraft
from specexport.recipe_feature_drafts import EagleDraft, MedusaDraft
from specexport.recipe_lengths import Lengths, LookupWindow, most_drafted
from specexport.recipe_weights import Weights
from specexport.tensorrt.capability import capable_names
from specexport.tensorrt.options import TensorRTBackend

if TYPE_CHECKING:
    from specexport.recipe import Recipe

MIN_SEQUENCE = 8


def conflicts(recipe: "Recipe") -> Iterator[str]:
    """One line per rule that is not kept: key, what was found, what was expected."""
    yield from _batch(recipe)
    yield from _widths(recipe)
    yield from _capacity(recipe)
    yield from _precision(recipe)
    yield from _weights(recipe)
    yield from _engine(recipe)


def _found(part: BaseModel, key: str) -> str:
    """`found 4`, or what stands in for a key that was not written."""
    value = getattr(part, key)
    return f"found {value}" if key in part.model_fields_set else f"left out and so {value}"


def _batch(recipe: "Recipe") -> Iterator[str]:
    if list(recipe.batch) != sorted({1, *recipe.batch}):
        yield f"batch: found {list(recipe.batch)}, expected ascending sizes that begin with 1, such as [1, 2, 4]"


def _widths(recipe: "Recipe") -> Iterator[str]:
    widths = recipe.verify_widths
    if isinstance(recipe.draft, NoneDraft):
        if widths:
            yield f"verify_widths: found {list(widths)}, expected none with draft.kind none"
        return
    widest = most_drafted(recipe.draft.nodes, _lookup(recipe.draft)) + 1
    if list(widths) != sorted(set(widths)) or widths[-1:] != (widest,):
        yield (
            f"verify_widths: found {list(widths)}, expected ascending widths that end with "
            f"{_widest_key(recipe.draft)} + 1 = {widest}{_by_default(recipe.draft)}"
        )


def _capacity(recipe: "Recipe") -> Iterator[str]:
    widest = recipe.widest_window
    least = widest + MIN_SEQUENCE
    chunk = "" if "prefill_chunk" in recipe.model_fields_set else f", {recipe.prefill_chunk} if left out,"
    window = (
        f"{MIN_SEQUENCE} tokens and the widest window, which is {widest} rows (prefill_chunk{chunk} or "
        f"{_widest_key(recipe.draft)} + 1{_by_default(recipe.draft)})"
    )
    if recipe.capacity < least:
        yield f"capacity: {_found(recipe, 'capacity')}, expected at least {least}: {window}"
    if isinstance(recipe.draft, ModelDraft) and recipe.draft.capacity is not None:
        found = recipe.draft.capacity
        if found < least:
            yield f"draft.capacity: found {found}, expected at least {least}: {window}"
        if found > recipe.capacity:
            said = "" if "capacity" in recipe.model_fields_set else ", which was left out; write it"
            yield f"draft.capacity: found {found}, expected at most capacity = {recipe.capacity}{said}"
    if recipe.check.max_new_tokens >= recipe.capacity:
        said = "" if "capacity" in recipe.model_fields_set else ", which was left out; write it"
        yield (
            f"check.max_new_tokens: {_found(recipe.check, 'max_new_tokens')}, "
            f"expected less than capacity = {recipe.capacity}{said}"
        )


def _precision(recipe: "Recipe") -> Iterator[str]:
    if recipe.precision not in recipe.backend.precisions:
        yield (
            f"precision: {_found(recipe, 'precision')}, allowed with this backend: "
            f"{', '.join(recipe.backend.precisions)}; {recipe.backend.precision_advice}"
        )


def _weights(recipe: "Recipe") -> Iterator[str]:
    if recipe.weights is None and recipe.fidelity is not None:
        yield "fidelity: found without weights, which it judges; name a weights.format or leave it out"
    runs_on_cpu = isinstance(recipe.backend, OnnxRuntimeBackend) and recipe.backend.provider == "cpu"
    for key, weights in (("weights", recipe.weights), ("draft.weights", recipe.weights_of("draft"))):
        if not isinstance(weights, Weights) or (key == "draft.weights" and weights is recipe.weights):
            continue
        if not runs_on_cpu:
            yield (
                f"{key}: found {weights.format} with this backend, expected backend.kind onnxruntime with "
                f"provider cpu, whose kernels take them; leave {key} out elsewhere, or give tensorrt and "
                "tensorrt_rtx weights.format fp8, int4-awq or nvfp4"
            )
        elif recipe.precision != "fp32":
            yield f"precision: found {recipe.precision} with {key}, expected fp32: activations and KV cache stay fp32"


def _engine(recipe: "Recipe") -> Iterator[str]:
    weights, backend = recipe.engine_weights, recipe.backend
    if weights is not None and not isinstance(backend, TensorRTBackend):
        yield (
            f"weights: found {weights.format} with this backend, expected backend.kind tensorrt or tensorrt_rtx; "
            "onnxruntime on the CPU takes int8 and int4"
        )
    if not isinstance(backend, TensorRTBackend):
        return
    if weights is not None and recipe.precision == "fp32":
        said = _found(recipe, "precision")
        yield f"precision: {said} with weights {weights.format}, expected fp16 or bf16"
        return
    if weights is not None and (backend.refit or backend.strip_weights):
        key = "refit" if backend.refit else "strip_weights"
        yield (
            f"backend.{key}: found true with weights {weights.format}; engines over them were never refitted, "
            "leave one of both out"
        )
    capable = capable_names(backend.kind, recipe.stored_formats)
    beyond = [name for name in backend.compute_capabilities if name not in capable]
    if beyond:
        yield (
            f"backend.compute_capabilities: found {', '.join(beyond)} with {' and '.join(recipe.stored_formats)}, "
            f"expected some of {', '.join(capable)}"
        )


def _lookup(draft: Draft) -> LookupWindow | None:
    """Prompt lookup beside the draft."""
    return draft.lookup if isinstance(draft, Lengths) else None


def _widest_key(draft: Draft) -> str:
    """What decides how many drafted tokens a window holds, by its key."""
    lookup = _lookup(draft)
    if lookup is not None and not isinstance(draft, NoneDraft) and lookup.k > draft.nodes:
        return "draft.lookup.k"
    if isinstance(draft, EagleDraft) and draft.dynamic_tree is not None:
        return "draft.dynamic_tree.nodes"
    has_tree = isinstance(draft, (EagleDraft, MedusaDraft)) and draft.tree is not None
    return "the nodes of draft.tree" if has_tree else "draft.k"


def _by_default(draft: Draft) -> str:
    """What to add where the widest key is a `k` that the recipe leaves out."""
    key = _widest_key(draft)
    if isinstance(draft, NoneDraft) or not key.endswith(".k"):
        return ""
    lookup = _lookup(draft) if key == "draft.lookup.k" else None
    part, k = (draft, draft.nodes) if lookup is None else (lookup, lookup.k)
    return "" if "k" in part.model_fields_set else f"; {key} is {k} if left out"
