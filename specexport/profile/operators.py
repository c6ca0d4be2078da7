"""One window of a graph taken apart: what each operator of it costs, from ONNX Runtime's own profile.

Owns how that file is read. A profiled run is slower than a plain one, by a microsecond or two per operator, so the
window is timed without a profile too.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from specexport.bundle.record import measure_window_times, stage_window
from specruntime.engines import EngineOptions, open_engine
from specruntime.engines.onnxruntime import OrtEngine
from specruntime.errors import InvalidArgument
from specruntime.manifest.schema import GraphSpec, OnnxRuntimeEngine

_REPEATS = 7


@dataclass(frozen=True)
class OperatorTime:
    """All nodes of one kind in one window: `count` of them take `ms` together."""

    name: str
    count: int
    ms: float


@dataclass(frozen=True)
class WindowProfile:
    """`ms`: the window, timed without a profile. `operators`: the dearest first."""

    graph: str
    profile: str
    width: int
    ms: float
    operators: tuple[OperatorTime, ...]

    @property
    def operator_ms(self) -> float:
        return sum(operator.ms for operator in self.operators)


def profile_windows(
    name: str, spec: GraphSpec, root: Path, options: EngineOptions, *, repeats: int = _REPEATS
) -> tuple[WindowProfile, ...]:
    """Every window of the graph, `CONTEXT_ROWS` tokens in the cache; medians over `repeats`.

    Raises `InvalidArgument` for an engine that writes no such profile.
    """
    if not isinstance(spec.engine, OnnxRuntimeEngine):
        raise InvalidArgument(
            f"{spec.file} runs on {spec.engine.kind}, expected onnxruntime, whose profile names operators"
        )
    times = measure_window_times(spec, root, options=options)
    events = _record(spec, root, options, repeats)
    return tuple(
        WindowProfile(name, p.name, p.width, times[p.name], _sum_up(events[p.name])) for p in spec.profiles
    )


def _record(
    spec: GraphSpec, root: Path, options: EngineOptions, repeats: int
) -> dict[str, list[list[dict[str, Any]]]]:
    """Node events of each run, by profile."""
    with TemporaryDirectory() as directory:
        to_file = replace(options, profile_to=Path(directory) / "operators")
        with closing(open_engine(spec, root, to_file)) as engine:
            assert isinstance(engine, OrtEngine), "checked by the caller"
            _run_all(engine, spec, repeats)
            opened = engine.spec
            written = {file: json.loads(path.read_text()) for file, path in engine.end_profiling().items()}
    found: dict[str, list[list[dict[str, Any]]]] = {}
    for file, events in written.items():
        runs = _split_by_run(events)
        names = [profile.name for profile in opened.profiles if (profile.file or opened.file) == file]
        for number, name in enumerate(names, start=-len(names)):  # the first runs were there to warm up
            found[name] = runs[len(runs) + number * repeats :][:repeats]
    return found


def _run_all(engine: OrtEngine, spec: GraphSpec, repeats: int) -> None:
    with closing(engine.new_context()) as context:
        for profile in spec.profiles:
            window = context.window(profile.name)
            stage_window(context, window)
            for _ in range(repeats):
                context.run(window)


def _split_by_run(events: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the kernel events of each run of the session, in the order of the runs."""
    runs = sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == "Session" and event["name"] == "model_run"
    )
    nodes = sorted(
        (event for event in events if event.get("cat") == "Node" and event["name"].endswith("_kernel_time")),
        key=lambda event: event["ts"],
    )
    found: list[list[dict[str, Any]]] = [[] for _ in runs]
    index = 0
    for event in nodes:
        while index < len(runs) and event["ts"] > runs[index][1]:
            index += 1
        if index < len(runs) and event["ts"] >= runs[index][0]:
            found[index].append(event)
    return found


def _sum_up(runs: Sequence[Sequence[dict[str, Any]]]) -> tuple[OperatorTime, ...]:
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(runs))
    counts: dict[str, int] = defaultdict(int)
    for number, events in enumerate(runs):
        for event in events:
            name = _describe(event["args"])
            totals[name][number] += event["dur"] / 1e3
            counts[name] += number == 0
    operators = [OperatorTime(name, counts[name], median(ms)) for name, ms in totals.items()]
    return tuple(sorted(operators, key=lambda operator: -operator.ms))


def _describe(args: dict[str, Any]) -> str:
    """Return the operator, with the sizes of a product: "MatMulNBits 576 x 3072"."""
    operator = str(args["op_name"])
    if "MatMul" not in operator and operator != "Gemm":
        return operator
    first, result = (_last_size(args.get(key)) for key in ("input_type_shape", "output_type_shape"))
    return f"{operator} {first} x {result}" if first and result else operator


def _last_size(tensors: object) -> int | None:
    if not isinstance(tensors, list) or not tensors or not isinstance(tensors[0], dict):
        return None
    shape = next(iter(tensors[0].values()), None)
    return int(shape[-1]) if isinstance(shape, list) and shape else None
