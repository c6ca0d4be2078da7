"""Is a path through some layers what these layers compute? Against the canonical graph cut down to them.

The canonical graph is itself held to PyTorch, layer by layer; cut down and run in its standard operators it is what a
lowered path is compared with.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from specexport.context import quiet
from specexport.graph.canonical import CanonicalGraph, ParityReference
from specexport.graph.files import GRAPH_NAME, STEP, describe_graph, save_graph
from specexport.graph.plan import GraphPlan
from specexport.parity.host import opened_context
from specexport.passes import run_passes
from specexport.passes.host_numbers import WidenBfloat16
from specexport.passes.interface import DropUnusedInputs
from specexport.passes.pipeline import plan_passes
from specruntime.engines import EngineOptions
from specruntime.engines.protocol import Context
from specruntime.engines.windows import stage
from specruntime.manifest.graph import SELF_PROFILE
from specruntime.manifest.schema import OnnxRuntimeEngine, Profile

_CACHE_KINDS = ("key", "value")


def kept_reference(
    canonical: CanonicalGraph, layers: Sequence[int], reference: ParityReference
) -> ParityReference:
    """Return `reference` for the kept layers as a model of their own: the same ids, their own caches."""
    tokens = len(reference.ids)
    with _kept_context(canonical, layers, Profile(name="all", width=tokens, rows=tokens)) as context:
        window = context.window("all")
        stage(window, reference.ids, 0)
        context.run(window)
        rows = {name: cache[0, :, :tokens].astype(np.float32) for name, cache in context.cache().items()}
        return replace(
            reference,
            logits=context.logits(window)[0, :, : canonical.facts.vocab_size].copy(),
            keys=tuple(rows[f"past_key.{n}"] for n in range(len(layers))),
            values=tuple(rows[f"past_value.{n}"] for n in range(len(layers))),
            hidden={},
        )


def path_difference(
    context: Context, canonical: CanonicalGraph, layers: Sequence[int], reference: ParityReference
) -> float:
    """Largest difference of a logit of the draft path in `context`, behind cache rows as all layers wrote them.

    Overwrites the caches of `context`.
    """
    start = len(reference.ids) - 1
    with _kept_context(canonical, layers, STEP) as kept:
        expected = _step(kept, STEP.name, reference, layers, start)
    found = _step(context, SELF_PROFILE, reference, range(canonical.facts.layers), start)
    difference = float(np.abs(found - expected).max())
    return difference if np.isfinite(difference) else float("inf")


def _step(
    context: Context, profile: str, reference: ParityReference, layers: Sequence[int], start: int
) -> NDArray[np.float32]:
    """[vocab] logits of the last token; the caches hold the rows of `layers` before it."""
    cache = context.cache()
    for number, layer in enumerate(layers):
        for kind, rows in zip(_CACHE_KINDS, (reference.keys[layer], reference.values[layer]), strict=True):
            held = cache[f"past_{kind}.{number}"]
            held[0, :, :start] = rows[:, :start].astype(held.dtype)
    window = context.window(profile)
    stage(window, reference.ids[start:], start)
    context.run(window)
    return context.logits(window)[0, 0, : context.spec.vocab_size].copy()


@contextmanager
def _kept_context(canonical: CanonicalGraph, layers: Sequence[int], profile: Profile) -> Iterator[Context]:
    """Yield the canonical graph of these layers only, in standard operators, on this machine's CPU."""
    model = ir.load(canonical.directory / GRAPH_NAME)
    passes = plan_passes(GraphPlan(kept_layers=tuple(layers)))
    with quiet():
        run_passes(model, (*passes, DropUnusedInputs(), WidenBfloat16()))
    with TemporaryDirectory() as name:
        directory = Path(name)
        save_graph(model, directory)
        spec = describe_graph(
            model,
            replace(canonical.facts, layers=len(layers)),
            file=GRAPH_NAME,
            profiles=(profile,),
            batch=1,
            engine=OnnxRuntimeEngine(minimum_version="1.0.0"),
        )
        with opened_context(spec, directory, EngineOptions(provider="cpu")) as context:
            yield context
