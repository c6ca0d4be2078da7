"""`train --kind model`: a few layers of the target, taught to say what the whole target says."""

from specexport.draft_models.pruned import PrunedForCausalLM
from specexport.training.batches import Batch
from specexport.training.objective import Outcome, Task, Teacher, TeacherRows


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

    def forward(self, batch: Batch) -> Outcome:
        width = batch.ids.shape[1] - 1  # rows that have a token to score
        rows = TeacherRows(batch, self._teacher)
        hidden = self.draft.model(input_ids=batch.ids[:, :width], use_cache=False).last_hidden_state
        wanted = batch.answer[:, 1:] & batch.answer[:, :-1]
        loss, hits = rows.score(self._teacher.logits, hidden, wanted, 0)
        outcome = Outcome.none(self._depth)
        outcome.add(0, loss, 1.0, int(hits.sum()), int(wanted.sum()))
        reached = hits
        for step in range(1, min(self._depth, width)):
            reached = reached[:, :-1] & hits[:, step:]
            starts = wanted[:, : width - step] & wanted[:, step:]
            outcome.count(step, int(reached.sum()), int(starts.sum()))
        return outcome
