"""Many sequences decoded side by side in PyTorch; whichever ends makes room for the next at once.

For writing training text only: what a bundle decodes is decoded by specruntime.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AttentionInterface,
    Cache,
    DynamicCache,
    PretrainedConfig,
    PreTrainedModel,
)

from specexport.context import quiet
from specexport.errors import TrainingRefused, reason_of
from specexport.export import weightless

_ATTENTION = "specexport_slots"
_DRAWN_FROM = 64  # ids: a draw sorts no more than these
_TOP_P = 0.95
_NOT_COMPUTED = {"s_aux": "sinks", "softcap": "a soft-cap", "position_bias": "a position bias"}


@dataclass(frozen=True)
class Request:
    """`temperature` 0 is greedy. Ends at an end id, which is kept, or after `max_new` ids."""

    prompt_ids: tuple[int, ...]
    temperature: float
    max_new: int


class SlotDecoder:
    """`slots` sequences of up to `capacity` ids. `banned` ids are never drawn, nor greedy.

    Raises `TrainingRefused` for attention that reads more than queries, keys and values.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        slots: int,
        capacity: int,
        end_ids: tuple[int, ...],
        banned: tuple[int, ...] = (),
        seed: int = 0,
    ) -> None:
        self._model = model
        self._capacity = capacity
        self._ends = frozenset(end_ids)
        self._ban = torch.zeros(model.get_output_embeddings().weight.shape[0])
        self._ban[list(banned)] = float("-inf")
        self._draws = torch.Generator().manual_seed(seed)
        self._slots: list[_Running | None] = [None] * slots
        self._cache = _SlotCache(model, slots, capacity)

    def decode(
        self, requests: Iterator[Request], stepped: Callable[[int], None] = lambda tokens: None
    ) -> Iterator[tuple[Request, tuple[int, ...]]]:
        """Each request with the ids that followed it, in the order they end.

        `stepped` gets the number of tokens that each step wrote.
        """
        config = self._model.config
        before = config._attn_implementation
        AttentionInterface.register(_ATTENTION, _grouped_attention)
        try:
            with torch.inference_mode():
                config._attn_implementation = before
                self._fill(requests)
                while active := sum(running is not None for running in self._slots):
                    config._attn_implementation = _ATTENTION
                    finished = self._step()
                    config._attn_implementation = before
                    stepped(active)
                    yield from finished
                    self._fill(requests)
        finally:
            config._attn_implementation = before

    def _fill(self, requests: Iterator[Request]) -> None:
        for slot, running in enumerate(self._slots):
            if running is None and (request := next(requests, None)) is not None:
                if len(request.prompt_ids) + request.max_new > self._capacity:
                    raise TrainingRefused(
                        f"prompt: found {len(request.prompt_ids)} tokens, expected at most "
                        f"{self._capacity - request.max_new}, so that {request.max_new} can follow"
                    )
                self._slots[slot] = _Running(request, self._prefill(slot, request), [])

    def _prefill(self, slot: int, request: Request) -> int:
        """Fill a slot's rows with the prompt but its last id, and return that one."""
        *context, last = request.prompt_ids
        if context:
            rows = DynamicCache()
            self._model.get_decoder()(input_ids=torch.tensor([context]), cache=rows, use_cache=True)
            self._cache.put(slot, rows)
        return last

    def _step(self) -> list[tuple[Request, tuple[int, ...]]]:
        active = [(slot, running) for slot, running in enumerate(self._slots) if running is not None]
        rows = torch.tensor([slot for slot, _ in active])
        positions = torch.tensor([running.position for _, running in active])
        self._cache.point(rows, positions)
        hidden = self._model.get_decoder()(
            input_ids=torch.tensor([[running.last] for _, running in active]),
            position_ids=positions[:, None],
            attention_mask=(torch.arange(int(positions.max()) + 1) <= positions[:, None])[:, None, None],
            cache=self._cache,
            use_cache=True,
        ).last_hidden_state
        logits = self._model.get_output_embeddings()(hidden[:, 0]).float() + self._ban
        chosen = self._choose(logits, torch.tensor([running.request.temperature for _, running in active]))
        finished = []
        for (slot, running), token in zip(active, chosen.tolist(), strict=True):
            running.answer.append(token)
            running.last = token
            if token in self._ends or len(running.answer) == running.request.max_new:
                finished.append((running.request, tuple(running.answer)))
                self._slots[slot] = None
        return finished

    def _choose(self, logits: Tensor, temperatures: Tensor) -> Tensor:
        chosen = logits.argmax(dim=-1)
        drawn = (temperatures > 0).nonzero()[:, 0]
        if len(drawn):
            values, ids = logits[drawn].topk(min(_DRAWN_FROM, logits.shape[1]), dim=-1)
            probabilities = torch.softmax(values / temperatures[drawn, None], dim=-1)
            probabilities[probabilities.cumsum(dim=-1) - probabilities > _TOP_P] = 0
            chosen[drawn] = ids.gather(-1, torch.multinomial(probabilities, 1, generator=self._draws))[:, 0]
        return chosen


@dataclass
class _Running:
    request: Request
    last: int
    answer: list[int]

    @property
    def position(self) -> int:
        return len(self.request.prompt_ids) - 1 + len(self.answer)


def require_decodable(config: PretrainedConfig, *, trust_remote_code: bool = False) -> str | None:
    """Raise `TrainingRefused` for a model of `config` whose attention `SlotDecoder` does not compute.

    Its layers are made without weights and called once, so that no architecture is spelled out here. -> why they could
    not be called; None where they were. Raises `CheckpointUnsupported` where none can be made.
    """
    AttentionInterface.register(_ATTENTION, _grouped_attention)
    with quiet(), weightless(config, trust_remote_code=trust_remote_code) as model:
        model.config._attn_implementation = _ATTENTION
        seen = torch.ones(1, 1, 1, 1, dtype=torch.bool)
        try:
            model.get_decoder()(torch.zeros(1, 1, dtype=torch.long), attention_mask=seen, use_cache=False)
        except TrainingRefused:
            raise
        except (
            Exception
        ) as error:  # whatever a model's own code raises without values: its weights show it then
            return reason_of(error)
    return None


class _SlotCache(Cache):
    """K/V rows of all slots in one buffer per layer; a step writes one row per active slot."""

    def __init__(self, model: PreTrainedModel, slots: int, capacity: int) -> None:
        super().__init__(layers=[])
        self._sizes = (slots, capacity)
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._rows = self._positions = torch.zeros(0, dtype=torch.long)
        self._allocate(model)

    def put(self, slot: int, rows: DynamicCache) -> None:
        for index, (keys, values) in enumerate(_tensors(rows)):
            self._keys[index][slot, :, : keys.shape[2]] = keys[0]
            self._values[index][slot, :, : keys.shape[2]] = values[0]

    def point(self, rows: Tensor, positions: Tensor) -> None:
        """Make the next step one of these slots, at these positions."""
        self._rows, self._positions = rows, positions

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys[self._rows, :, self._positions] = key_states[:, :, 0]
        values[self._rows, :, self._positions] = value_states[:, :, 0]
        high = int(self._positions.max()) + 1
        if len(self._rows) == len(keys):
            return keys[:, :, :high], values[:, :, :high]
        return keys[self._rows, :, :high], values[self._rows, :, :high]

    @property
    def is_sliding(self) -> list[bool]:
        return [False] * len(self._keys)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        return int(self._positions.max()) + 1, 0

    def _allocate(self, model: PreTrainedModel) -> None:
        """Shapes are those that the model writes, so that no architecture is spelled out here."""
        with torch.inference_mode():
            probe = DynamicCache()
            model.get_decoder()(input_ids=torch.zeros(1, 1, dtype=torch.long), cache=probe, use_cache=True)
        slots, capacity = self._sizes
        for keys, values in _tensors(probe):
            for found, buffers in ((keys, self._keys), (values, self._values)):
                buffers.append(found.new_zeros(slots, found.shape[1], capacity, found.shape[3]))


def _tensors(cache: DynamicCache) -> list[tuple[Tensor, Tensor]]:
    """Keys and values [1, kv_heads, rows, head_dim] by layer."""
    found = []
    for layer in cache.layers:
        keys, values = getattr(layer, "keys", None), getattr(layer, "values", None)
        if not isinstance(keys, Tensor) or not isinstance(values, Tensor):
            raise TrainingRefused(
                f"found a {type(layer).__name__} in the target's cache, expected keys and values in every layer"
            )
        found.append((keys, values))
    return found


def _grouped_attention(
    module: torch.nn.Module,
    query: Tensor,  # [B, heads, 1, head_dim]
    key: Tensor,  # [B, kv_heads, keys, head_dim]
    value: Tensor,
    attention_mask: Tensor | None,  # [B, 1, 1, keys] bool
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend with the heads that share a key head in the place of queries, so that no key is copied."""
    for name, meaning in _NOT_COMPUTED.items():
        if options.get(name) is not None:
            raise TrainingRefused(
                f"found a target whose attention has {meaning} ({type(module).__name__}), which decoding in "
                'training does not compute; give `train --prompts` a file with answers, {"messages": [...]} on each '
                "line (docs/training.md)"
            )
    batch, heads, _, width = query.shape
    grouped = query.reshape(batch, key.shape[1], -1, width)
    attended = torch.nn.functional.scaled_dot_product_attention(
        grouped, key, value, attn_mask=attention_mask, scale=scaling
    )
    return attended.reshape(batch, 1, heads, width), None
