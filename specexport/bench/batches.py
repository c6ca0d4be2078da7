"""Tokens per second by the number of sequences decoded together: plain, drafting always, and as the batch decides.

Every size decodes the same prompts in all three ways, one way after the other and all of it `repeat` times, so that a
slow minute meets every figure.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from specexport.bench.machine import describe_machine, threads_of
from specexport.bench.prompts import BenchPrompt, encode_prompts
from specexport.errors import Interrupted
from specruntime import clock
from specruntime.batches.speculation import Speculation
from specruntime.bundle import LoadedBundle
from specruntime.errors import EngineFailed, InvalidArgument
from specruntime.sampling.params import SamplingParams
from specruntime.serving import BatchStepper, Work

WAYS = ("plain", "speculative", "auto")
Tokens = list[list[int]]


@dataclass(frozen=True, slots=True)
class BatchSpeed:
    """One batch size. Tokens of all rows over the time of all, prefills included; medians of the repeats."""

    rows: int
    plain: float
    speculative: float
    auto: float
    host_ms_per_launch: float  # of plain decoding, outside engine calls; sampling and text included
    launches: int  # of plain decoding
    outputs_equal: bool  # all ways gave the tokens of plain decoding
    repeats: int  # turns that the medians are of

    @property
    def auto_of_best(self) -> float:
        return self.auto / max(self.plain, self.speculative)


@dataclass(frozen=True, slots=True)
class BatchReport:
    machine: dict[str, Any]
    speeds: tuple[BatchSpeed, ...]
    interrupted: bool = False  # sizes or repeats are missing

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "partial": self.interrupted,
            "machine": self.machine,
            "batches": [
                asdict(speed) | {"auto_of_best": speed.auto_of_best, "plain_vs_one_row": self._scale(speed)}
                for speed in self.speeds
            ],
        }

    def render(self) -> str:
        lines = [f"{'rows':>5}{'plain':>9}{'x 1 row':>9}{'drafts':>9}{'auto':>9}{'of best':>9}{'host ms':>9}"]
        if self.interrupted:
            turns = ", ".join(f"{speed.repeats} of {speed.rows} rows" for speed in self.speeds)
            lines.insert(0, f"partial: interrupted; whole turns: {turns}")
        for speed in self.speeds:
            lines.append(
                f"{speed.rows:5}{speed.plain:9.1f}{self._shown_scale(speed):>9}{speed.speculative:9.1f}{speed.auto:9.1f}"
                f"{speed.auto_of_best:8.2f}x{speed.host_ms_per_launch:9.2f}"
            )
        return "\n".join([*lines, "tokens per second of all rows together, prefills included"])

    def _scale(self, speed: BatchSpeed) -> float | None:
        """Against one row; None where one row was not measured."""
        return next((speed.plain / one.plain for one in self.speeds if one.rows == 1), None)

    def _shown_scale(self, speed: BatchSpeed) -> str:
        scale = self._scale(speed)
        return "-" if scale is None else f"{scale:.2f}x"


def bench_batches(
    bundle: LoadedBundle,
    prompts: Sequence[BenchPrompt],
    sizes: Sequence[int],
    params: SamplingParams,
    repeat: int,
    advance: Callable[[str], object],
    threads: int | None = None,
) -> BatchReport:
    """`params` have `max_tokens`; `threads` are those that the bundle was opened with, None: its own number.

    Raises `InvalidArgument` for a size that the bundle was not built for, `EngineFailed` where a turn fails, and
    `Interrupted` with the report of all whole turns where Ctrl-C came after the first.
    """
    most = bundle.manifest.target.batch
    if not sizes or min(sizes) < 1 or max(sizes) > most:
        raise InvalidArgument(
            f"--batch: found {', '.join(map(str, sizes))}, this bundle holds 1 to {most} sequences: list more under "
            "`batch` in the recipe and build again"
        )
    params = params.seeded()  # one for all ways, whose tokens are compared
    encoded = list(encode_prompts(bundle, prompts, params.max_tokens or 0).values())
    measured: dict[int, list[dict[str, _Run]]] = {size: [] for size in sizes}
    with ExitStack() as stack:
        # No prompt is taken over from the way before: every way pays for its prefills.
        steppers = {
            size: stack.enter_context(closing(BatchStepper(bundle, size, prefix_caching="off")))
            for size in sizes
        }
        interrupted = False
        try:
            for turn in range(repeat):
                for size, stepper in steppers.items():
                    advance(f"batch {size}, turn {turn + 1} of {repeat}")
                    measured[size].append({way: _decode(stepper, encoded, way, params) for way in WAYS})
        except KeyboardInterrupt:
            if not any(measured.values()):
                raise
            interrupted = True
    machine = describe_machine(threads_of(bundle.manifest.target, threads))
    speeds = tuple(_speed(size, runs) for size, runs in measured.items() if runs)
    if interrupted:
        raise Interrupted(BatchReport(machine, speeds, interrupted))
    return BatchReport(machine, speeds)


@dataclass(frozen=True, slots=True)
class _Run:
    tokens: Tokens
    seconds: float
    engine_seconds: float
    launches: int

    @property
    def speed(self) -> float:
        return sum(map(len, self.tokens)) / self.seconds


def _speed(size: int, runs: Sequence[dict[str, _Run]]) -> BatchSpeed:
    plain = [run["plain"] for run in runs]
    return BatchSpeed(
        rows=size,
        **{way: median(run[way].speed for run in runs) for way in WAYS},
        host_ms_per_launch=median(1e3 * (run.seconds - run.engine_seconds) / run.launches for run in plain),
        launches=plain[0].launches,
        outputs_equal=all(run[way].tokens == plain[0].tokens for run in runs for way in WAYS),
        repeats=len(runs),
    )


def _decode(stepper: BatchStepper, prompts: Sequence[list[int]], way: str, params: SamplingParams) -> _Run:
    """Answer every prompt, as many at a time as fit; a row that ends makes room for the next prompt."""
    stepper.speculation = Speculation({"plain": 0, "speculative": stepper.slots, "auto": None}[way])
    (batch,) = stepper.batches
    engine, launches = batch.engine_seconds, batch.launches
    tokens: Tokens = [[] for _ in prompts]
    waiting, free = list(range(len(prompts))), list(range(stepper.slots))
    active: dict[int, int] = {}
    started = clock.now()
    while waiting or active:
        while waiting and free:
            slot, prompt = free.pop(0), waiting.pop(0)
            active[slot] = prompt
            stepper.admit(slot, stepper.check(Work(np.asarray(prompts[prompt]), params)))
        for turn in list(stepper.step()):
            if turn.error is not None:
                raise EngineFailed(f"a batch of {stepper.slots} failed: {turn.error}") from turn.error
            if turn.delta is None:
                continue
            tokens[active[turn.slot]] += turn.delta.tokens
            if turn.delta.finish_reason is not None:
                stepper.evict(turn.slot)
                del active[turn.slot]
                free = sorted([*free, turn.slot])
    seconds = clock.now() - started
    return _Run(tokens, seconds, batch.engine_seconds - engine, batch.launches - launches)
