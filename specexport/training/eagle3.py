"""`train --kind eagle3`: the draft unrolled over several steps, so that it learns from its own hidden states.

Training-time test of https://arxiv.org/abs/2503.01840. Row t of step s stands for the pair at position t + s and
scores token t + s + 2.
"""

import torch
from torch import Tensor
from transformers import DynamicCache

from specexport.draft_models import Eagle3Draft
from specexport.training.batches import Batch
from specexport.training.objective import Outcome, Task, Teacher, TeacherRows

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

    def forward(self, batch: Batch) -> Outcome:
        assert batch.taps is not None
        width = batch.ids.shape[1] - 2  # rows that have a token to score
        first = max(batch.first_answer - 1, 0)  # later steps need only the rows from which drafting starts
        rows = TeacherRows(batch, self._teacher)
        positions = torch.arange(width)[None]
        cache = DynamicCache()
        hidden = self.draft.project(batch.taps[:, :width])
        outcome = Outcome.none(min(self.steps, self._unrolled))
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
    """[1, 1, rows, keys] bool: `specexport.draft_models.unrolled_mask`, of the rows that step `step` > 0 has.

    Step 0 has rows 0 to `width`, step s has rows `first` to `width - s`.
    """
    rows = torch.arange(first, width - step)[:, None]
    parts = [torch.arange(width)[None] <= rows]
    parts += [torch.arange(first, width - other)[None] == rows for other in range(1, step + 1)]
    return torch.cat(parts, dim=1)[None, None]
