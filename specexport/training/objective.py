"""The loss of every kind: cross entropy against the target's own distribution, over the ids a draft can say."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from specexport.training.batches import Batch


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
class Outcome:
    """Of one batch: `loss` to descend, and by step how many chains got that far of those that could."""

    loss: Tensor
    reached: list[int]
    starts: list[int]
    weight: float = 0.0

    @classmethod
    def none(cls, steps: int) -> "Outcome":
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
        """Called before each step with the share of the run that is done, 0 to 1."""

    def forward(self, batch: Batch) -> Outcome:
        raise NotImplementedError


class TeacherRows:
    """The teacher's law after each answer token of a batch but the last, computed once and used by every step."""

    def __init__(self, batch: Batch, teacher: Teacher) -> None:
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
        """Scores `hidden` [B, R, h], whose row r foretells what the target's row `column` + r decides.

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
