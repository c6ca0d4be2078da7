"""The residual stream of a decoder: what enters each layer, what leaves the last one, what the LM head reads.

Found by running the model, for every architecture at once: the decoder layers are the list of modules of which each
hands its result to the next. Knows nothing of drafts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

_PROBE_TOKENS = 2


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
