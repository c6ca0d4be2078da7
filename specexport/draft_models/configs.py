"""What decides the shape of a draft model. Owned by the draft's config.json; formats are read in `formats`."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from transformers import LlamaConfig

from specexport.draft_models.tapped_layers import TappedLayers
from specexport.errors import CheckpointUnsupported, shorten_reason


@contextmanager
def describing_layers(name: str) -> Iterator[None]:
    """Around what makes a config or layers of keys that came from a file; `name` is what messages call the draft.

    Raises `CheckpointUnsupported` for whatever transformers and torch raise on values that do not fit together.
    """
    try:
        yield
    except CheckpointUnsupported:
        raise
    except Exception as error:
        reason = shorten_reason(f"{type(error).__name__}: {error}")
        raise CheckpointUnsupported(f"{name}: its config.json describes no Llama layer: {reason}") from None


@dataclass(frozen=True)
class EagleConfig:
    """An EAGLE draft of any version.

    `layer` describes its decoder layers (sizes, rope, eps, how many); `target_hidden_size` and `target_vocab_size` are
    those of the model it drafts for.
    """

    layer: LlamaConfig
    target_hidden_size: int
    target_vocab_size: int
    draft_vocab_size: int
    """Rows of the draft's own LM head (EAGLE-3); the target's vocabulary where the head is shared."""
    tapped: TappedLayers | None = None
    """EAGLE-3: which hidden states of the target are the features."""
    norm_before_residual: bool = False
    """EAGLE-3: the residual of the layer is the normed hidden state rather than the bare one."""
    norm_output: bool = False
    """EAGLE-3: the next step takes the normed hidden state (EAGLE-3.1) rather than the bare one."""
    fc_bias: bool = False
    """EAGLE-1/2: the joining projection has a bias."""
    extra_norms: bool = False
    """EAGLE-1/2: a norm on the embeddings and one before the LM head (HASS)."""
    input_norm: bool = False
    """EAGLE-1/2: the first decoder layer norms its input, as further layers always do."""
    own_embeddings: bool = False
    """The checkpoint brings its embedding table; else it is the target's."""

    @property
    def layer_ids(self) -> tuple[int, ...]:
        """The features are what enters these layers of the target; () for EAGLE-1/2."""
        return self.tapped.entering if self.tapped is not None else ()

    @property
    def hidden_size(self) -> int:
        """Of the draft's hidden states."""
        return int(self.layer.hidden_size)


@dataclass(frozen=True)
class MedusaConfig:
    """Medusa heads: each `layers` residual blocks, then an LM head."""

    heads: int
    layers: int
    hidden_size: int
    vocab_size: int
    """Rows of the LM head, the target's padded vocabulary."""
    own_head: bool = True
    """Each head has an LM head of its own; else they share the target's."""
