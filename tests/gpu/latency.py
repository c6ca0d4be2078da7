"""Milliseconds per window width of everything installed: TensorRT, ONNX Runtime CUDA, PyTorch eager and compiled.

All see the same model in fp16 and about the same number of cached tokens; all times end with a synchronised device.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter

import torch
from transformers import PreTrainedModel, StaticCache

from specexport.bundle.record import CONTEXT_ROWS, measure_step_times
from specruntime.bundle import load_manifest
from specruntime.engines import EngineOptions
from specruntime.engines.tensorrt import TrtEngine
from tests.device_tensors import forget_graphs

REPEATS = 50
WARM_UP = 5


def measure_bundle(bundle: Path) -> dict[str, float]:
    """Of a bundle's target, by its own engine."""
    return measure_step_times(load_manifest(bundle).target, bundle, repeats=REPEATS)


def measure_without_graphs(bundle: Path) -> dict[str, float]:
    """Of a TensorRT bundle with plain enqueues in place of replayed graphs."""
    engine = TrtEngine(load_manifest(bundle).target, bundle, EngineOptions())
    context = engine.new_context()
    forget_graphs(context)
    times = {}
    for profile in context.spec.profiles:
        window = context.window(profile.name)
        window.cache_length[:] = min(CONTEXT_ROWS, context.spec.capacity - profile.width)
        times[str(profile.width)] = _median_ms(lambda window=window: context.run(window))  # type: ignore[misc]
    context.close()
    engine.close()
    return times


def measure_pytorch(
    model: PreTrainedModel, widths: list[int], capacity: int, *, compiled: bool
) -> dict[str, float]:
    """Of the checkpoint in PyTorch with a static cache, eager or through `torch.compile` with CUDA graphs."""
    device = model.device
    forward = torch.compile(model, mode="reduce-overhead", fullgraph=False) if compiled else model
    cache = StaticCache(config=model.config, max_cache_len=capacity)
    times = {}
    with torch.no_grad():
        model(
            input_ids=torch.zeros(1, CONTEXT_ROWS, dtype=torch.long, device=device),
            cache=cache,
            use_cache=True,
        )
        for width in widths:
            ids = torch.zeros(1, width, dtype=torch.long, device=device)
            positions = torch.arange(CONTEXT_ROWS, CONTEXT_ROWS + width, device=device)[None]

            def step(ids: torch.Tensor = ids, positions: torch.Tensor = positions) -> None:
                forward(input_ids=ids, position_ids=positions, cache=cache, use_cache=True)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)

            times[str(width)] = _median_ms(step)
    return times


def _median_ms(step: Callable[[], None]) -> float:
    for _ in range(WARM_UP):
        step()
    times = []
    for _ in range(REPEATS):
        began = perf_counter()
        step()
        times.append(perf_counter() - began)
    return round(median(times) * 1e3, 4)
