"""What a draft takes from the model it drafts for."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


@dataclass(frozen=True)
class DraftTarget:
    """The side of the target that a draft must fit. `embeddings` and `head` are its own, not copies."""

    name: str
    hidden_size: int
    layers: int
    vocab_size: int
    """Ids that are tokens."""
    embeddings: Tensor  # [rows, hidden]
    head: nn.Linear
    max_positions: int

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the LM head, and of the target's logits."""
        return int(self.head.weight.shape[0])

    @property
    def dtype(self) -> torch.dtype:
        return self.embeddings.dtype


def draft_target(model: PreTrainedModel, *, name: str, vocab_size: int) -> DraftTarget:
    """Return what a draft needs to know of a loaded `model`."""
    head, table = model.get_output_embeddings(), model.get_input_embeddings().weight
    assert isinstance(head, nn.Linear), "a causal language model ends in a linear LM head"
    assert isinstance(table, Tensor), "and begins with a table of embeddings"
    return DraftTarget(
        name=name,
        hidden_size=int(head.weight.shape[1]),
        layers=int(model.config.num_hidden_layers),
        vocab_size=vocab_size,
        embeddings=table,
        head=head,
        max_positions=int(getattr(model.config, "max_position_embeddings", 0) or 0),
    )
