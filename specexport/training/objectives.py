"""The loss of every kind: cross entropy against the target's own distribution, over the ids a draft can say."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache

from specexport.draft_models import DraftTarget, Eagle3Draft, MedusaConfig, MedusaHeads
from specexport.draft_models.pruned import PrunedForCausalLM
from specexport.training.batching import TrainingBatch


class Teacher:
    """The target's LM head, cut to a draft's vocabulary."""

    def __init__(self, head: Tensor, target_ids: Tensor, bias: Tensor | None = None) -> None:
        """`head` [target vocabulary, h]; `target_ids` [V] ascending; `bias` [target vocabulary]."""
        size = len(target_ids)
        first_ids = int(target_ids[-1]) + 1 == size  # all of them up to the last: no copy is needed
        self.head = (head[:size] if first_ids else head[target_ids]).detach()  # [V, h]
        self.bias = None if bias is None else bias[target_ids].detach()  # [V]
        self._draft_ids = torch.full((len(head),), -1)
        self._draft_ids[target_ids] = torch.arange(len(target_ids))

    def probabilities(self, final: Tensor) -> Tensor:
        """[M, h] normed hidden states -> [M, V], renormalised: what the target says outside V is ignored."""
        with torch.no_grad():
            logits = (final @ self.head.to(final.dtype).T).float()
            if self.bias is not None:
                logits += self.bias
            return torch.softmax(logits, dim=-1).to(torch.bfloat16)

    def logits(self, hidden: Tensor) -> Tensor:
        """[M, h] -> [M, V] by the target's LM head, for drafts that share it; gradients reach `hidden` only."""
        bias = None if self.bias is None else self.bias.to(hidden.dtype)
        return nn.functional.linear(hidden, self.head.to(hidden.dtype), bias)

    def draft_ids(self, ids: Tensor) -> Tensor:
        """Target ids -> draft ids; -1 where the draft has none."""
        return self._draft_ids[ids]


@dataclass
class BatchLoss:
    """The result of one batch: `loss` to minimise, and by step how many chains got that far of those that could."""

    loss: Tensor
    reached: list[int]
    starts: list[int]
    weight: float = 0.0

    @classmethod
    def none(cls, steps: int) -> "BatchLoss":
        return cls(torch.zeros(()), [0] * steps, [0] * steps)

    def add(self, step: int, loss: Tensor, weight: float, reached: int, starts: int) -> None:
        """`loss` becomes part of a weighted mean over steps."""
        total = self.weight + weight
        self.loss = (self.loss * self.weight + loss * weight) / total
        self.weight = total
        self.count(step, reached, starts)

    def count(self, step: int, reached: int, starts: int) -> None:
        self.reached[step] += reached
        self.starts[step] += starts


class Task(nn.Module):
    """A draft and its objective: what the loop trains. Called with a batch, it gives the outcome."""

    def begin(self, done: float) -> None:
        """Adapt to the run, before each step, with the share of the run that is done, 0 to 1."""

    def forward(self, batch: TrainingBatch) -> BatchLoss:
        raise NotImplementedError


class TeacherRows:
    """The teacher's distribution after each answer token of a batch but the last, computed once for all steps."""

    def __init__(self, batch: TrainingBatch, teacher: Teacher) -> None:
        judged = torch.zeros_like(batch.answer)
        judged[:, :-1] = batch.answer[:, 1:]  # row j decides token j + 1
        self._probabilities = teacher.probabilities(batch.final[judged])  # [N, V]
        self._place = torch.full(judged.shape, -1)
        self._place[judged] = torch.arange(int(judged.sum()))
        self._next = torch.full(judged.shape, -1)
        self._next[:, :-1] = teacher.draft_ids(batch.ids[:, 1:])

    def score(
        self, logits: Callable[[Tensor], Tensor], hidden: Tensor, wanted: Tensor, column: int
    ) -> tuple[Tensor, Tensor]:
        """Scores `hidden` [B, R, h], whose row r predicts what the target's row `column` + r decides.

        Where `wanted` [B, R] only -> the loss, and [B, R] bool: the top id is the target's next.
        """
        width = hidden.shape[1]
        following = self._next[:, column : column + width][wanted]  # [M]
        places = self._place[:, column : column + width][wanted]
        scores = logits(hidden[wanted])  # [M, V]
        loss = soft_cross_entropy(scores, self._probabilities[places], (following >= 0).float())
        hits = torch.zeros_like(wanted)
        hits[wanted] = scores.detach().argmax(dim=-1) == following
        return loss, hits


class _SoftCrossEntropy(torch.autograd.Function):
    """The gradient is made in the forward pass, so that no second tensor of the logits' size is kept."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, probabilities: Tensor, weights: Tensor) -> Tensor:
        values = logits.to(torch.float32, copy=True)  # written over below; the caller still reads its own
        scale = weights / weights.sum().clamp(min=1)  # [M]
        total = torch.logsumexp(values, dim=-1)
        rows = total - torch.linalg.vecdot(values, probabilities.float())
        gradient = values.sub_(total[:, None]).exp_().sub_(probabilities).mul_(scale[:, None])
        ctx.save_for_backward(gradient.to(logits.dtype))
        loss: Tensor = (rows * scale).sum()
        return loss

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        scaled: Tensor = gradient * gradients[0].to(gradient.dtype)
        return scaled, None, None


def soft_cross_entropy(logits: Tensor, probabilities: Tensor, weights: Tensor) -> Tensor:
    """Mean of -sum p log q over rows: `logits` and `probabilities` [M, V], `weights` [M] of 0 or 1."""
    loss: Tensor = _SoftCrossEntropy.apply(logits, probabilities, weights)  # type: ignore[no-untyped-call]
    return loss


STEP_DECAY = 0.8
_CURRICULUM = ((0.4, 1), (0.55, 2), (1.0, 64))  # until this share of the run, at most so many steps


class Eagle3Task(Task):
    """`forward` is the loss of a batch and how often each step hit."""

    def __init__(self, draft: Eagle3Draft, teacher: Teacher, steps: int) -> None:
        super().__init__()
        self.draft = draft
        self.steps = self._unrolled = steps
        self._teacher = teacher

    def begin(self, done: float) -> None:
        """Few steps at first: what a step learns from the target's features, all steps use."""
        self._unrolled = next(steps for share, steps in _CURRICULUM if done <= share)

    def forward(self, batch: TrainingBatch) -> BatchLoss:
        assert batch.taps is not None
        width = batch.ids.shape[1] - 2  # rows that have a token to score
        first = max(batch.first_answer - 1, 0)  # later steps need only the rows from which drafting starts
        rows = TeacherRows(batch, self._teacher)
        positions = torch.arange(width)[None]
        cache = DynamicCache()
        hidden = self.draft.project(batch.taps[:, :width])
        outcome = BatchLoss.none(min(self.steps, self._unrolled))
        reached = batch.answer[:, 1 : width + 1]  # [B, width] chains that hit at every step so far
        for step in range(min(self.steps, self._unrolled, width - first)):
            begin, end = (first if step else 0), width - step
            if step:
                hidden = hidden[:, first:end] if step == 1 else hidden[:, : end - first]
                hidden = self.draft.fed_back(hidden)
            embeds = self.draft.embed(batch.ids[:, begin + step + 1 : end + step + 1])
            mask = unrolled(width, first, step) if step else None
            hidden = self.draft.layer(hidden, embeds, positions[:, begin + step : end + step], mask, cache)
            scored = hidden if step else hidden[:, first:]
            starts = batch.answer[:, first + 1 : end + 1] & batch.answer[:, first + step + 2 : end + step + 2]
            loss, hits = rows.score(self.draft.logits, scored, starts, first + step + 1)
            reached = reached[:, first:] if not step else reached[:, : end - first]
            reached = reached & hits
            outcome.add(step, loss, STEP_DECAY**step, int(reached.sum()), int(starts.sum()))
        return outcome


def unrolled(width: int, first: int, step: int) -> Tensor:
    """Return [1, 1, rows, keys] bool: the keys that the rows of unrolled step `step` > 0 see (EAGLE-3).

    Row t of step s stands for position t + s: it sees the keys of step 0 up to t, and of each later step only its own
    row. Step 0 has rows 0 to `width`, step s has rows `first` to `width - s`.
    """
    rows = torch.arange(first, width - step)[:, None]
    parts = [torch.arange(width)[None] <= rows]
    parts += [torch.arange(first, width - other)[None] == rows for other in range(1, step + 1)]
    return torch.cat(parts, dim=1)[None, None]


HEAD_DECAY = 0.8


def new_medusa(target: DraftTarget, heads: int) -> MedusaHeads:
    """Heads of one residual block that begins as nothing: each says at first what the target says of t + 1."""
    draft = MedusaHeads(
        MedusaConfig(
            heads=heads,
            layers=1,
            hidden_size=target.hidden_size,
            vocab_size=target.padded_vocab_size,
            own_head=False,
        )
    )
    draft.lm_head = target.head
    with torch.no_grad():
        for head in draft.medusa_head:
            for parameter in head.parameters():
                parameter.zero_()
    return draft


class MedusaTask(Task):
    """`forward` is the loss of a batch and how often each head hit, all heads before it too.

    Learned from a `teacher` of the most frequent ids, which costs less; measured against `every` id, as the heads say
    any of them where they are used.
    """

    def __init__(self, draft: MedusaHeads, teacher: Teacher, every: Teacher) -> None:
        super().__init__()
        self.draft = draft
        self._teacher, self._every = teacher, every

    def forward(self, batch: TrainingBatch) -> BatchLoss:
        heads = self.draft.config.heads
        width = batch.ids.shape[1] - 2
        teacher = self._teacher if self.training else self._every
        rows = TeacherRows(batch, teacher)
        outcome = BatchLoss.none(heads)
        reached = batch.answer[:, 1 : width + 1]
        for index in range(min(heads, width)):
            end = width - index
            wanted = batch.answer[:, 1 : end + 1] & batch.answer[:, index + 2 : end + index + 2]
            hidden = self.draft.medusa_head[index](batch.final[:, :end])
            loss, hits = rows.score(teacher.logits, hidden, wanted, index + 1)
            reached = reached[:, :end] & hits
            outcome.add(index, loss, HEAD_DECAY**index, int(reached.sum()), int(wanted.sum()))
        return outcome


class SmallModelTask(Task):
    """`forward` is the loss of a batch and how often the model's top id is the target's.

    `depth`: of how many tokens in a row hits are counted; a draft model's later tokens see its own earlier ones, which
    are the target's as long as all hit.
    """

    def __init__(self, draft: PrunedForCausalLM, teacher: Teacher, depth: int) -> None:
        super().__init__()
        self.draft = draft
        self._depth = depth
        self._teacher = teacher

    def forward(self, batch: TrainingBatch) -> BatchLoss:
        width = batch.ids.shape[1] - 1  # rows that have a token to score
        rows = TeacherRows(batch, self._teacher)
        hidden = self.draft.model(input_ids=batch.ids[:, :width], use_cache=False).last_hidden_state
        wanted = batch.answer[:, 1:] & batch.answer[:, :-1]
        loss, hits = rows.score(self._teacher.logits, hidden, wanted, 0)
        outcome = BatchLoss.none(self._depth)
        outcome.add(0, loss, 1.0, int(hits.sum()), int(wanted.sum()))
        reached = hits
        for step in range(1, min(self._depth, width)):
            reached = reached[:, :-1] & hits[:, step:]
            starts = wanted[:, : width - step] & wanted[:, step:]
            outcome.count(step, int(reached.sum()), int(starts.sum()))
        return outcome
