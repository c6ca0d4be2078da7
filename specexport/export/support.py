"""What a checkpoint must be for the canonical graph to hold it; everything else is refused with the reason.

Owns the refusals, the rope factors frozen at build, the shape of each layer's KV cache, and the residual stream: what
enters each layer, what leaves the last one, what the LM head reads. The stream is found by running the model, for every
architecture at once: the decoder layers are the list of modules of which each hands its result to the next.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from specexport.checkpoints.refusals import require_attention
from specexport.errors import CheckpointUnsupported, reason_of

_STATIC_ROPE = "default"
_PROBE_TOKENS = 2


@dataclass(frozen=True)
class CacheLayout:
    """Shape of the KV cache, the same for every layer: rows of [kv_heads, capacity, head_dim]."""

    layers: int
    kv_heads: tuple[int, ...]  # per layer
    head_dim: tuple[int, ...]  # per layer

    def shape(self, layer: int, capacity: int) -> tuple[int, int, int]:
        return self.kv_heads[layer], capacity, self.head_dim[layer]


def check_supported(model: PreTrainedModel) -> CacheLayout:
    """Return the cache layout of a decoder-only model, measured by running one token through it.

    Raises `CheckpointUnsupported` for encoder-decoders, recurrent or cross-attention state, attention that does not go
    through transformers' attention interface, and layers without a cache of their own.
    """
    config = model.config
    name = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        raise CheckpointUnsupported(
            f"{name} is an encoder-decoder; expected a decoder-only causal language model"
        )
    require_attention(config, type(model))
    if model.get_output_embeddings() is None:
        raise CheckpointUnsupported(f"{name} has no LM head; expected a causal language model")
    return _measure_cache(model)


def _measure_cache(model: PreTrainedModel) -> CacheLayout:
    cache = DynamicCache()
    try:
        with torch.no_grad():
            model(input_ids=torch.zeros(1, 1, dtype=torch.long), cache=cache, use_cache=True)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise CheckpointUnsupported(
            f"{model.config.model_type} does not decode one token in PyTorch: {reason_of(error)}; "
            "check the sizes in its config"
        ) from None
    expected = model.config.num_hidden_layers
    shapes: list[tuple[int, int]] = []
    for index, layer in enumerate(cache.layers):
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if keys is None or values is None or keys.ndim != 4 or keys.shape != values.shape:
            raise CheckpointUnsupported(
                f"{model.config.model_type} layer {index} keeps no KV cache of [heads, rows, head_dim]; expected one "
                "key and one value tensor of the same shape per layer"
            )
        shapes.append((keys.shape[1], keys.shape[3]))
    if len(shapes) != expected:
        raise CheckpointUnsupported(
            f"{model.config.model_type} writes {len(shapes)} KV caches for {expected} layers; expected one per layer "
            "(layers that share a cache or keep recurrent state are not supported)"
        )
    return CacheLayout(len(shapes), tuple(s[0] for s in shapes), tuple(s[1] for s in shapes))


def freeze_rope(model: torch.nn.Module, capacity: int) -> str | None:
    """Fix length-dependent rotary factors for `capacity`, in place.

    Returns what was chosen, in words, or None where nothing depends on length.
    Long-rope switches between two factor sets by the longest position seen. A padded window would flip it, so the set
    is chosen once. Dynamic NTK scaling changes with every token and is refused.
    """
    chosen: str | None = None
    for module in model.modules():
        rope_type = getattr(module, "rope_type", None)
        if rope_type is None:
            continue
        kinds = rope_type if isinstance(rope_type, dict) else {None: rope_type}
        for layer_type, kind in kinds.items():
            if "dynamic" in kind:
                raise CheckpointUnsupported(
                    f"rotary scaling '{kind}' changes its factors with the sequence length; expected a fixed scaling "
                    "(default, linear, yarn, llama3 or longrope)"
                )
            if kind == "longrope":
                chosen = _freeze_longrope(module, layer_type, capacity)
        if chosen is not None:
            static = dict.fromkeys(kinds, _STATIC_ROPE) if isinstance(rope_type, dict) else _STATIC_ROPE
            module.rope_type = static  # type: ignore[assignment]
    return chosen


def _freeze_longrope(module: torch.nn.Module, layer_type: str | None, capacity: int) -> str:
    config = module.config
    parameters = config.rope_parameters[layer_type] if layer_type else config.rope_parameters  # type: ignore[index,union-attr]
    original = int(parameters["original_max_position_embeddings"])  # type: ignore[index]
    use_long = capacity > original
    prefix = f"{layer_type}_" if layer_type else ""
    length = original + 1 if use_long else original
    inv_freq, _ = ROPE_INIT_FUNCTIONS["longrope"](
        config, torch.device("cpu"), seq_len=length, layer_type=layer_type
    )
    getattr(module, f"{prefix}inv_freq").copy_(inv_freq)
    return f"longrope: {'long' if use_long else 'short'} factors (capacity {capacity}, original context {original})"


def hidden_names(layers: int) -> tuple[str, ...]:
    """Return the outputs of the canonical graph that hold hidden states, in order: hidden.0 ... hidden.L,
    hidden.norm.
    """
    return (*(f"hidden.{n}" for n in range(layers + 1)), "hidden.norm")


@dataclass(frozen=True)
class ResidualStream:
    """The decoder layers in order, and the width of what passes between them."""

    layers: tuple[nn.Module, ...]
    hidden_size: int


@dataclass
class HiddenStates:
    """What one forward pass left: `entering[n]` enters layer n, `leaving` leaves the last, `normed` enters the LM head.

    Each [B, W, hidden]; `normed` may have a width of its own (OPT projects its embeddings).
    """

    entering: list[Tensor] = field(default_factory=list)
    leaving: list[Tensor] = field(default_factory=list)
    normed: list[Tensor] = field(default_factory=list)

    def by_name(self) -> dict[str, Tensor]:
        """hidden.0 ... hidden.L, hidden.norm of a pass that is over."""
        last, (normed,) = self.leaving[-1], self.normed
        if normed is last:  # a model without a final norm; one tensor cannot be two outputs
            normed = last.clone()
        states = [*self.entering, last, normed]
        return dict(zip(hidden_names(len(self.entering)), states, strict=True))


def find_residual_stream(model: PreTrainedModel) -> ResidualStream | str:
    """Return the decoder layers of `model`, or the reason why they cannot be identified."""
    expected = model.config.num_hidden_layers
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == expected]
    found = [stream for modules in lists if (stream := _probe(model, tuple(modules))) is not None]
    if len(found) != 1:
        return (
            f"{model.config.model_type} has {len(found)} lists of {expected} modules of which each reads what the one "
            "before returned; expected one, its decoder layers"
        )
    return found[0]


def _probe(model: PreTrainedModel, modules: tuple[nn.Module, ...]) -> ResidualStream | None:
    """`modules` as a residual stream if a short sequence passes through them in a row, each handing on its result."""
    stream = ResidualStream(modules, 0)
    with watching(model, stream) as states, torch.no_grad():
        try:
            model(input_ids=torch.zeros(1, _PROBE_TOKENS, dtype=torch.long), use_cache=False)
        except (
            Exception
        ):  # code that takes one width only, whatever it raises: the trace finds it and names it
            return None
    if len(states.entering) != len(modules) or len(states.leaving) != len(modules) or len(states.normed) != 1:
        return None
    shape = states.entering[0].shape
    if len(shape) != 3 or shape[1] != _PROBE_TOKENS or states.leaving[-1].shape != shape:
        return None
    handed_on = zip(states.leaving, states.entering[1:], strict=False)
    return ResidualStream(modules, int(shape[2])) if all(torch.equal(a, b) for a, b in handed_on) else None


@contextmanager
def watching(model: PreTrainedModel, stream: ResidualStream) -> Iterator[HiddenStates]:
    """Collect the hidden states of the forward passes inside the block."""
    states = HiddenStates()

    def enter(module: nn.Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        first = args[0] if args else kwargs.get("hidden_states")
        if isinstance(first, Tensor):
            states.entering.append(first)

    def leave(module: nn.Module, args: tuple[object, ...], output: object) -> None:
        first = output[0] if isinstance(output, tuple) else output
        if isinstance(first, Tensor):
            states.leaving.append(first)

    def read(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        states.normed.append(args[0])

    head = model.get_output_embeddings()
    assert head is not None, "check_supported refuses models without an LM head"
    hooks = [head.register_forward_pre_hook(read)]
    for layer in stream.layers:
        hooks.append(layer.register_forward_pre_hook(enter, with_kwargs=True))
        hooks.append(layer.register_forward_hook(leave))
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()
