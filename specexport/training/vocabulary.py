"""The ids that a draft can say: those its target says most."""

import torch
from torch import Tensor

from specexport.training.dialogues import Dialogue


def most_frequent(
    dialogues: list[Dialogue], size: int, *, always: tuple[int, ...], vocab_size: int, padded_vocab_size: int
) -> Tensor:
    """[size] int64 ascending: `always`, then by how often answers hold an id, prompts counting a quarter.

    Ids that nothing holds fill up from the lowest, which tokenizers give to what is frequent. Held-out dialogues do
    not count.
    """
    counts = torch.zeros(padded_vocab_size, dtype=torch.float64)
    for dialogue in dialogues:
        if not dialogue.held_out:
            for ids, weight in ((dialogue.answer_ids, 1.0), (dialogue.prompt_ids, 0.25)):
                counts += weight * torch.bincount(torch.tensor(ids), minlength=padded_vocab_size)
    counts[list(always)] = float("inf")
    counts[vocab_size:] = -1.0
    order = torch.sort(counts, descending=True, stable=True).indices
    return order[: min(size, vocab_size)].sort().values
