"""`train --kind medusa`: heads that foretell further tokens from the target's last hidden state.

https://arxiv.org/abs/2401.10774. Head i at position t scores token t + i + 2; all heads share the target's LM head,
which stays as it is, so only the residual blocks are learned.
"""

import torch

from specexport.draft_models import DraftTarget, MedusaConfig, MedusaHeads
from specexport.training.batches import Batch
from specexport.training.objective import Outcome, Task, Teacher, TeacherRows

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

    def forward(self, batch: Batch) -> Outcome:
        heads = self.draft.config.heads
        width = batch.ids.shape[1] - 2
        teacher = self._teacher if self.training else self._every
        rows = TeacherRows(batch, teacher)
        outcome = Outcome.none(heads)
        reached = batch.answer[:, 1 : width + 1]
        for index in range(min(heads, width)):
            end = width - index
            wanted = batch.answer[:, 1 : end + 1] & batch.answer[:, index + 2 : end + index + 2]
            hidden = self.draft.medusa_head[index](batch.final[:, :end])
            loss, hits = rows.score(teacher.logits, hidden, wanted, index + 1)
            reached = reached[:, :end] & hits
            outcome.add(index, loss, HEAD_DECAY**index, int(reached.sum()), int(wanted.sum()))
        return outcome
