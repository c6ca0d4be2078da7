"""The one training loop: batches in, checkpoints out. Knows no draft kind.

A run is decided by its plan and the stored dialogues, so one that was interrupted continues with the same batches.
"""

import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from specexport.errors import TrainingRefused
from specexport.training.batching import TrainingBatch, load_batch, plan_epoch
from specexport.training.features import FeatureStore, Span
from specexport.training.objectives import BatchLoss, Task
from specexport.training.target import fast_bfloat16
from specruntime import clock

CHECKPOINT_SECONDS = 600
REPORT_SECONDS = 15
_WARM_UP_STEPS = 40
_LARGEST_GRADIENT = 0.5
_SMOOTHED = 0.95
_JUDGED_TOKENS = 512  # of a batch: scores may be of the whole vocabulary
_CHECKPOINT, _PROGRESS = "checkpoint", "progress.json"


@dataclass(frozen=True)
class TrainingPlan:
    """`minutes` of training, checkpoints and earlier runs included, end a run before its `epochs` do.

    `draft` says what is trained, JSON-ready: a checkpoint of another is not continued.
    """

    epochs: int
    tokens_per_step: int
    learning_rate: float
    seed: int = 0
    minutes: float | None = None
    draft: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Progress:
    """Where a run is."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    loss: float = math.nan
    reached: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)

    @property
    def acceptance(self) -> list[float]:
        """By drafted token, the share of chains accepted up to it, since the last report."""
        return [reached / starts for reached, starts in zip(self.reached, self.starts, strict=True) if starts]

    def note(self, outcome: BatchLoss, rows: int) -> None:
        loss = float(outcome.loss.detach())
        self.loss = loss if math.isnan(self.loss) else _SMOOTHED * self.loss + (1 - _SMOOTHED) * loss
        self.step, self.batch, self.tokens = self.step + 1, self.batch + 1, self.tokens + rows
        longer = len(outcome.reached) - len(self.reached)
        self.reached, self.starts = self.reached + [0] * longer, self.starts + [0] * longer
        for step, (reached, starts) in enumerate(zip(outcome.reached, outcome.starts, strict=True)):
            self.reached[step] += reached
            self.starts[step] += starts

    def forget_hits(self) -> None:
        self.reached, self.starts = [], []


Report = Callable[[Progress, float], None]


def train(
    task: Task,
    store: FeatureStore,
    stored: Sequence[Span],
    plan: TrainingPlan,
    directory: Path,
    report: Report = lambda progress, done: None,
) -> Progress:
    """Train what in `task` has gradients, on those of the `stored` dialogues that are not held out.

    Leaves a checkpoint every `CHECKPOINT_SECONDS`, and continues from the one in `directory` where there is one of the
    same plan. `report` gets the progress and the share of the run that is done. Raises `TrainingRefused` where there is
    nothing to train on or the checkpoint is another plan's.
    """
    spans = [span for span in stored if not span.held_out]
    if not spans:
        raise TrainingRefused("found no dialogue to train on; give more prompts")
    shared = common_prefix(store, spans)
    learner = _Learner(task, plan.learning_rate)
    checkpoint = _Checkpoint(learner.accelerator, directory, plan, spans)
    progress = checkpoint.resume()
    steps = plan.epochs * len(plan_epoch(spans, plan.tokens_per_step, plan.seed, 0))
    before, saved = clock.now() - progress.seconds, clock.now()
    reported = 0.0
    learner.task.train()
    for batch_spans in _batches(spans, plan, progress):
        progress.seconds = clock.now() - before
        done = _share_done(progress, plan, steps)
        if done >= 1:
            break
        batch = load_batch(store, batch_spans, learn_from=shared)
        progress.note(learner.step(batch, progress.step, done), batch.rows)
        if progress.seconds - reported > REPORT_SECONDS:
            reported = progress.seconds
            report(progress, done)
            progress.forget_hits()
        if clock.now() - saved > CHECKPOINT_SECONDS:
            checkpoint.save(progress)
            saved = clock.now()
    progress.seconds = clock.now() - before
    checkpoint.save(progress)
    learner.task.eval()
    return progress


def evaluate(task: Task, store: FeatureStore, spans: Sequence[Span]) -> list[float]:
    """Return the share of chains accepted up to each drafted token, on the answers of `spans`."""
    total = Progress()
    task.eval()
    task.begin(1.0)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=fast_bfloat16()):
        for batch_spans in plan_epoch(spans, _JUDGED_TOKENS, 0, 0):
            batch = load_batch(store, batch_spans)
            total.note(task(batch), batch.rows)
    return total.acceptance


def common_prefix(store: FeatureStore, spans: Sequence[Span]) -> int:
    """Ids that all dialogues begin with: the chat template's. What follows is text, and worth learning from."""
    ids = store.rows("ids")
    first = ids[spans[0].start : spans[0].start + spans[0].answer_start].tolist()
    shared = len(first)
    for span in spans:
        others = ids[span.start : span.start + min(shared, span.answer_start)].tolist()
        shared = next((n for n, (a, b) in enumerate(zip(first, others, strict=False)) if a != b), len(others))
    return max(shared, 1)


def _batches(spans: Sequence[Span], plan: TrainingPlan, progress: Progress) -> Iterator[list[Span]]:
    """Yield the batches that are left of the run. `progress` says where they begin, and what epoch the next one
    is of.
    """
    while progress.epoch < plan.epochs:
        batches = plan_epoch(spans, plan.tokens_per_step, plan.seed, progress.epoch)
        yield from batches[progress.batch :]
        progress.epoch, progress.batch = progress.epoch + 1, 0


def _share_done(progress: Progress, plan: TrainingPlan, steps: int) -> float:
    by_time = progress.seconds / (60 * plan.minutes) if plan.minutes is not None else 0.0
    return max(progress.step / steps, by_time)


def _pace(step: int, done: float) -> float:
    """Return the learning-rate factor: a linear warm-up, then a cosine decay to nearly 0."""
    return min(1.0, (step + 1) / _WARM_UP_STEPS) * (
        0.02 + 0.98 * (1 + math.cos(math.pi * min(done, 1.0))) / 2
    )


class _Learner:
    """The task and its optimizer, as `accelerator` runs them."""

    def __init__(self, task: Task, learning_rate: float) -> None:
        self.accelerator = Accelerator(cpu=True, mixed_precision="bf16" if fast_bfloat16() else "no")
        optimizer = torch.optim.AdamW(
            [parameter for parameter in task.parameters() if parameter.requires_grad],
            lr=learning_rate,
            betas=(0.9, 0.95),
            weight_decay=0.01,
            fused=True,
        )
        self.task, self._optimizer = self.accelerator.prepare(task, optimizer)
        self._learning_rate = learning_rate

    def step(self, batch: TrainingBatch, number: int, done: float) -> BatchLoss:
        """Learn from one batch; `number` steps were before it, and the share `done` of the run."""
        self.task.begin(done)
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate * _pace(number, done)
        outcome: BatchLoss = self.task(batch)
        self.accelerator.backward(outcome.loss)
        self.accelerator.clip_grad_norm_(self.task.parameters(), _LARGEST_GRADIENT)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return outcome


class _Checkpoint:
    """A run on disk: replaced whole."""

    def __init__(
        self, accelerator: Accelerator, directory: Path, plan: TrainingPlan, spans: Sequence[Span]
    ) -> None:
        self._accelerator = accelerator
        self._place, self._fresh = directory / _CHECKPOINT, directory / f"{_CHECKPOINT}.new"
        stated = {"epochs": plan.epochs, "tokens_per_step": plan.tokens_per_step, "seed": plan.seed}
        rows = sha256(json.dumps([(span.start, span.length) for span in spans]).encode()).hexdigest()
        self._plan: dict[str, Any] = {**plan.draft, **stated, "dialogues": len(spans), "rows": rows[:12]}

    def resume(self) -> Progress:
        if not self._place.is_dir() and (self._fresh / _PROGRESS).is_file():
            self._fresh.rename(self._place)  # of a run that ended between removing the old one and this
        path = self._place / _PROGRESS
        if not path.is_file():
            return Progress()
        record = json.loads(path.read_text())
        if record["plan"] != self._plan:
            raise TrainingRefused(
                f"{self._place}: is of a run with {record['plan']}, expected {self._plan}; give the same options and "
                "prompts to continue it, or --restart"
            )
        self._accelerator.load_state(str(self._place))
        return Progress(**record["progress"])

    def save(self, progress: Progress) -> None:
        progress.forget_hits()
        fresh = self._fresh
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        self._accelerator.save_state(str(fresh))
        record = {"plan": self._plan, "progress": vars(progress)}
        (fresh / _PROGRESS).write_text(json.dumps(record))
        shutil.rmtree(self._place, ignore_errors=True)
        fresh.rename(self._place)
