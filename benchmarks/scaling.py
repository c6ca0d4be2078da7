"""Measures a window's cost as width, context, capacity, batch and model size grow, next to its hardware lower bound.

    python benchmarks/scaling.py --part width          # or context, capacity, batch, size
    python benchmarks/scaling.py --render              # the tables of docs/scaling.md, and the picture

A part makes the graphs it needs (minutes, kept in the build cache), measures the machine's limits, times windows on
the runtime's own engine and writes its rows into docs/figures/scaling.json; the other parts' rows stay.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from limits import Machine, Need, measure_machine
from scaling_models import PRECISIONS, SHAPES, Made, make
from scaling_tables import draw, render

from specexport.bench.machine import describe_machine
from specruntime.engines import EngineOptions, open_engine
from specruntime.engines.cores import usable_cores
from specruntime.engines.protocol import Engine, Window
from specruntime.engines.windows import stage, stage_chain
from specruntime.manifest.schema import Profile

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "figures"
CAPACITY, CONTEXT = 1024, 500
_LEAST, _MOST, _SECONDS = 5, 30, 1.5  # runs of one point, and the time after which there are enough
Launch = Callable[[], None]
Row = dict[str, Any]


@dataclass(frozen=True)
class Point:
    """One launch to be timed: what it is called in its table, and what it cannot do without."""

    names: dict[str, Any]
    need: Need
    launch: Launch


def window(width: int) -> Profile:
    """A window that judges each of its rows, as verification does; the widest ones judge one, as prompts do."""
    return Profile(name=f"width_{width}", width=width, rows=1 if width >= 32 else width)


def fill(staged: Window, context: int) -> None:
    """Any token will do; the cache holds zeros up to `context` rows, which are read like others."""
    for lane in range(len(staged.cache_length)):
        stage_chain(staged, lane)
        stage(staged, np.ones(staged.profile.width, np.int64), context, lane=lane)


def single(made: Made, engine: Engine, windows: list[tuple[int, int]]) -> Iterator[Point]:
    """Launches of one sequence: (width, tokens before it)."""
    context = engine.new_context()
    for width, before in windows:
        profile = window(width)
        staged = context.window(profile.name)

        def launch(staged: Window = staged, before: int = before) -> None:
            fill(staged, before)
            context.run(staged)

        need = made.shape.need(made.weights, made.precision, width=width, rows=profile.rows, context=before)
        yield Point({"width": width, "context": before}, need, launch)
    context.close()


def batched(made: Made, engine: Engine, width: int, sizes: list[int]) -> Iterator[Point]:
    """Launches of several sequences, each behind `CONTEXT` tokens."""
    batch = engine.new_batch(sizes[-1])
    profile = window(width)
    for size in sizes:
        staged = batch.window(profile.name, size)

        def launch(staged: Window = staged) -> None:
            fill(staged, CONTEXT)
            batch.run(staged, 0)

        need = made.shape.need(
            made.weights, made.precision, width=width, rows=profile.rows, context=CONTEXT, batch=size
        )
        yield Point({"width": width, "batch": size}, need, launch)
    batch.close()


def timed(point: Point) -> float:
    """Median milliseconds."""
    point.launch()
    times: list[float] = []
    while len(times) < _LEAST or (sum(times) < _SECONDS and len(times) < _MOST):
        began = perf_counter()
        point.launch()
        times.append(perf_counter() - began)
    return 1e3 * median(times)


class Part:
    """Rows of one table, measured on one machine in one go."""

    def __init__(self, threads: int) -> None:
        self.options = EngineOptions(threads=threads)
        self.threads = threads
        self.rows: list[Row] = []
        self._made: list[tuple[Made, Callable[[Made, Engine], Iterator[Point]], dict[str, Any]]] = []

    def plan(self, made: Made, points: Callable[[Made, Engine], Iterator[Point]], **names: Any) -> None:
        self._made.append((made, points, names))

    def measure(self) -> dict[str, Any]:
        machine = measure_machine(self.threads)
        for made, points, names in self._made:
            engine = open_engine(made.graph.spec, made.directory, self.options)
            for point in points(made, engine):
                labels = {"model": made.shape.name, "precision": made.precision, **names, **point.names}
                self.rows.append(_row(labels, timed(point), point.need, machine))
                print(self.rows[-1], file=sys.stderr)
            engine.close()
        today = datetime.now(UTC).date().isoformat()
        return {
            "date": today,
            "machine": describe_machine(self.threads),
            "limits": asdict(machine),
            "rows": self.rows,
        }


def _row(labels: dict[str, Any], milliseconds: float, need: Need, machine: Machine) -> Row:
    return {
        **labels,
        "ms": round(milliseconds, 3),
        "memory_ms": round(need.memory_ms(machine), 3),
        "arithmetic_ms": round(need.arithmetic_ms(machine), 3),
        "limit_ms": round(need.limit_ms(machine), 3),
    }


def plan_width(part: Part, models: list[str]) -> None:
    widths = [1, 2, 4, 6, 8, 12, 16, 32, 64, 128]
    profiles = tuple(window(width) for width in widths)
    for precision in PRECISIONS:
        made = make(SHAPES["135M"], precision, capacity=CAPACITY, profiles=profiles)
        part.plan(made, lambda m, e: single(m, e, [(width, CONTEXT) for width in widths]))


def plan_context(part: Part, models: list[str]) -> None:
    capacity, contexts = 16384, [0, 512, 1024, 2048, 4096, 8192, 16000]
    windows = [(width, before) for width in (1, 6) for before in contexts]
    for precision in PRECISIONS:
        made = make(SHAPES["135M"], precision, capacity=capacity, profiles=(window(1), window(6)))
        part.plan(made, lambda m, e: single(m, e, windows), capacity=capacity)


def plan_capacity(part: Part, models: list[str]) -> None:
    for precision in PRECISIONS:
        for capacity in (1024, 4096, 16384):
            made = make(SHAPES["135M"], precision, capacity=capacity, profiles=(window(1), window(6)))
            part.plan(made, lambda m, e: single(m, e, [(1, CONTEXT), (6, CONTEXT)]), capacity=capacity)


def plan_batch(part: Part, models: list[str]) -> None:
    for precision in PRECISIONS:
        made = make(SHAPES["135M"], precision, capacity=CAPACITY, profiles=(window(1), window(6)), batch=8)
        for width in (1, 6):
            part.plan(made, lambda m, e, width=width: batched(m, e, width, [1, 2, 4, 8]))


def plan_size(part: Part, models: list[str]) -> None:
    profiles = (window(1), window(6), window(128))
    for name in models:
        for precision in PRECISIONS:
            made = make(SHAPES[name], precision, capacity=CAPACITY, profiles=profiles)
            part.plan(made, lambda m, e: single(m, e, [(w, CONTEXT) for w in (1, 6, 128)]))


PLANS: dict[str, Callable[[Part, list[str]], None]] = {
    "width": plan_width,
    "context": plan_context,
    "capacity": plan_capacity,
    "batch": plan_batch,
    "size": plan_size,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=PLANS)
    parser.add_argument("--models", default=",".join(SHAPES), help="of the part size, separated by commas")
    parser.add_argument("--prepare", action="store_true", help="make the graphs, measure nothing")
    parser.add_argument(
        "--render", action="store_true", help="print the tables of what was measured, and draw"
    )
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--output", type=Path, default=FIGURES / "scaling")
    options = parser.parse_args()
    stored = options.output.with_suffix(".json")
    report: dict[str, Any] = json.loads(stored.read_text()) if stored.exists() else {}
    if options.part:
        part = Part(options.threads)
        models = options.models.split(",")
        PLANS[options.part](part, models)
        if options.prepare:
            return
        found = part.measure()
        if options.part == "size":  # the largest are made, measured and forgotten one by one
            before = report.get("size", {}).get("rows", [])
            found["rows"] = [row for row in before if row["model"] not in models] + found["rows"]
        report[options.part] = found
        stored.write_text(json.dumps(report, indent=1) + "\n")
    if options.render:
        draw(report, options.output.with_suffix(".png"))
    print(render(report))


if __name__ == "__main__":
    main()
