"""Makes a transformers decoder write a preallocated KV cache and mask by window, for every architecture at once.

Three hooks, registered with transformers under one name: an attention function that emits ONNX `Attention`, a mask
function that builds the mask of the current window from the layer's own rule (full or sliding), and a `Cache` whose
update emits `TensorScatter`. No architecture is named here; what a model asks for that the graph cannot carry is
refused with `CheckpointUnsupported`.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, Cache, PreTrainedModel

from specexport.errors import CheckpointUnsupported


def attention_with_sinks(
    query: Tensor,  # [B, heads, W, head_dim]
    key: Tensor,  # [B, kv_heads, capacity, head_dim]
    value: Tensor,  # [B, kv_heads, capacity, head_dim]
    mask: Tensor,  # [B, 1, W, capacity] bool
    sinks: Tensor,  # [heads]
    scaling: float | None,
    softcap: float | None,
) -> Tensor:
    """-> [B, W, heads, head_dim]. Query heads are folded into the rows of their KV head: the cache is not repeated."""
    batch, heads, width, head_dim = query.shape
    kv_heads, capacity = key.shape[1:3]
    folded = query.reshape(batch, kv_heads, heads // kv_heads * width, head_dim)
    scores = folded @ key.transpose(2, 3) * (head_dim**-0.5 if scaling is None else scaling)
    if softcap:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores.reshape(batch, heads, width, capacity).masked_fill(~mask, torch.finfo(scores.dtype).min)
    sink_column = sinks.to(scores.dtype)[None, :, None, None].expand(batch, heads, width, 1)
    weights = torch.softmax(torch.cat([scores, sink_column], dim=-1), dim=-1)[..., :-1]
    output = weights.reshape(batch, kv_heads, -1, capacity) @ value
    return output.reshape(batch, heads, width, head_dim).transpose(1, 2)


IMPLEMENTATION = "specexport"
FULL_WINDOW = 0
WINDOW_PROPERTY = "specexport.sliding_window"
"""Metadata key on each `Attention` node: rows a query may look back, or `FULL_WINDOW`."""

_IGNORED_OPTIONS = frozenset({"dropout", "sliding_window", "use_cache", "cache_position", "position_ids"})
_EXPERTS = "batched_mm"
"""Mixture of experts as a gather of each token's experts: no loop over experts that depends on the data."""

_PROBE = (0, 1, 2, 3, 5, 8, 13, 31, 64, 200)


@dataclass
class WindowInputs:
    """The graph inputs that every layer's mask and cache write depend on. B batch, W width, R logit rows."""

    position_ids: Tensor  # [B, W]
    cache_length: Tensor  # [B]
    window_mask: Tensor  # [B, W, W] bool
    logits_rows: Tensor  # [B, R]
    capacity: int
    masks: dict[int, tuple[Tensor, int | CheckpointUnsupported]] = field(default_factory=dict)
    """By id: each mask, and its sliding window or why no layer can attend with it."""


_window: ContextVar[WindowInputs] = ContextVar("specexport_window")


@contextmanager
def window_inputs(inputs: WindowInputs) -> Iterator[None]:
    """Make `inputs` visible to the hooks while the model's forward runs."""
    token = _window.set(inputs)
    try:
        yield
    finally:
        _window.reset(token)


class ScatterCache(Cache):
    """A fixed-capacity cache: `update` emits one `TensorScatter` per tensor and returns the whole buffer.

    `keys` and `values` are per layer, each [B, kv_heads, capacity, head_dim]; `present` collects what update returned.
    """

    def __init__(self, keys: Sequence[Tensor], values: Sequence[Tensor], cache_length: Tensor) -> None:
        super().__init__(layers=[])
        self._past = list(zip(keys, values, strict=True))
        self._cache_length = cache_length
        self.present: list[tuple[Tensor, Tensor] | None] = [None] * len(self._past)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        if self.present[layer_idx] is not None:
            raise CheckpointUnsupported(
                f"layer {layer_idx} writes its KV cache twice in one forward pass; expected once"
            )
        past_key, past_value = self._past[layer_idx]
        present = (self._scatter(past_key, key_states), self._scatter(past_value, value_states))
        self.present[layer_idx] = present
        return present

    def _scatter(self, past: Tensor, rows: Tensor) -> Tensor:
        return torch.onnx.ops.symbolic(
            "TensorScatter",
            [past, rows.to(past.dtype), self._cache_length],
            {"axis": -2},
            dtype=past.dtype,
            shape=past.shape,
            version=24,
        )

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._past[layer_idx][0].shape[-2], 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self._past[0][0].shape[-2]

    @property
    def is_sliding(self) -> list[bool]:
        return [False] * len(self._past)

    is_linear = is_dummy = is_sliding

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_initialized(self) -> bool:
        return True

    def __len__(self) -> int:
        return len(self._past)


def window_attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    mask_function: Callable[..., object],
    local_size: int | None = None,
    **kwargs: object,
) -> Tensor:
    """[B, 1, W, capacity] bool: committed rows, window ancestors, both inside the layer's sliding window.

    A rule that the graph cannot carry is refused by the layer that attends with it: models also make the masks of
    layer kinds that they do not have, such as a window that their config switches off.
    """
    inputs = _window.get()
    try:
        sliding_window = _sliding_window(mask_function, local_size)
    except CheckpointUnsupported as refusal:
        unusable = inputs.window_mask[:, None]
        inputs.masks[id(unusable)] = (unusable, refusal)
        return unusable
    rows = torch.arange(inputs.capacity)[None, None, :]  # [1, 1, capacity]
    node = rows - inputs.cache_length[:, None, None]  # [B, 1, capacity] window node held by the row
    width = inputs.window_mask.shape[-1]
    in_window = (node >= 0) & (node < width)
    node = torch.minimum(node.clamp(min=0), torch.ones_like(node) * (width - 1))
    ancestors = torch.gather(inputs.window_mask, 2, node.expand(-1, width, -1)) & in_window
    mask = (rows < inputs.cache_length[:, None, None]) | ancestors
    if sliding_window != FULL_WINDOW:
        node_positions = torch.gather(inputs.position_ids, 1, node[:, 0, :])  # [B, capacity]
        row_positions = torch.where(in_window[:, 0, :], node_positions, rows[:, 0, :])
        mask = mask & (inputs.position_ids[:, :, None] - row_positions[:, None, :] < sliding_window)
    mask = mask[:, None]
    inputs.masks[id(mask)] = (mask, sliding_window)
    return mask


def _sliding_window(mask_function: Callable[..., object], local_size: int | None) -> int:
    """Return the look-back of a mask rule, found by asking the rule itself; refuses rules that are neither causal nor
    sliding.

    transformers hands over a closure, so the rule is compared with ours on a grid of (query, key) positions.
    """
    if local_size is not None and local_size < 1:
        raise CheckpointUnsupported(
            f"the model attends in a sliding window of {local_size} tokens, which shows a token nothing; expected a "
            "window of 1 or more, or null in its config for none"
        )
    size = local_size or FULL_WINDOW
    edges = {size - 1, size, size + 1, 2 * size, 2 * size + 1} if size else set()
    grid = sorted({*_PROBE, *(edge for edge in edges if edge >= 0)})
    try:
        answers = _answers(mask_function, grid)
    except (IndexError, RuntimeError, TypeError) as error:
        raise CheckpointUnsupported(
            f"the model's attention mask depends on more than positions ({error}); expected a causal or "
            "sliding-window mask"
        ) from None
    for (query, key), found in answers.items():
        if found != (key <= query and (size == FULL_WINDOW or query - key < size)):
            later = ", so a token sees the text after it too" if found and key > query else ""
            raise CheckpointUnsupported(
                f"the model's attention mask {'shows' if found else 'hides'} key {key} to query {query}{later}; "
                f"expected a causal mask{f' over a sliding window of {size}' if size else ''}: chunked, prefix and "
                "bidirectional masks are not supported"
            )
    return size


def _answers(rule: Callable[..., object], grid: Sequence[int]) -> dict[tuple[int, int], bool]:
    """Return what a mask rule says of each (query, key), asked in a thread of its own.

    A tracer follows one thread: asked there, the questions would be most of what it traces of a small model.
    """

    def ask() -> dict[tuple[int, int], bool]:
        return {(q, k): bool(rule(0, 0, torch.tensor(q), torch.tensor(k))) for q in grid for k in grid}

    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(ask).result()


def window_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """query [B, heads, W, head_dim], key and value [B, kv_heads, capacity, head_dim] -> [B, W, heads, head_dim]."""
    sliding_window = _checked_window(module, attention_mask, kwargs)
    if s_aux is not None:
        assert attention_mask is not None
        return attention_with_sinks(query, key, value, attention_mask, s_aux, scaling, softcap), None
    scale = {} if scaling is None else {"scale": float(scaling)}
    cap = {"softcap": float(softcap)} if softcap else {}
    output = torch.onnx.ops.symbolic(
        "Attention",
        [query, key, value, attention_mask],
        {"is_causal": 0, **scale, **cap},
        dtype=query.dtype,
        shape=(*query.shape[:3], value.shape[-1]),
        version=24,
        metadata_props={WINDOW_PROPERTY: str(sliding_window)},
    )
    # Contiguous as transformers' own functions return it: some layers take a view of it.
    return output.transpose(1, 2).contiguous(), None


def _checked_window(module: torch.nn.Module, mask: Tensor | None, options: dict[str, object]) -> int:
    """Return the sliding window of the mask that a layer attends with; refuses what the graph has no place for."""
    for name, option in options.items():
        if name not in _IGNORED_OPTIONS and isinstance(option, Tensor):
            raise CheckpointUnsupported(
                f"attention in {type(module).__name__} takes the tensor '{name}'; the graph has no input for it"
            )
    known = _window.get().masks.get(id(mask))
    if known is None:
        raise CheckpointUnsupported(
            f"{type(module).__name__} changes the attention mask before use; expected the mask of its layer kind"
        )
    if isinstance(known[1], CheckpointUnsupported):
        raise known[1]
    return known[1]


class RowSelectingHead(torch.nn.Module):
    """Runs the LM head on the rows named by `logits_rows` only: [B, W, hidden] -> [B, R, vocab]."""

    def __init__(self, head: torch.nn.Module) -> None:
        super().__init__()
        self.head = head

    @property
    def bias(self) -> Tensor | None:
        """Some models keep their head's bias under a second name, and move both together."""
        found: Tensor | None = getattr(self.head, "bias", None)
        return found

    def forward(self, hidden: Tensor) -> Tensor:
        rows = _window.get().logits_rows[:, :, None].expand(-1, -1, hidden.shape[-1])
        return self.head(torch.gather(hidden, 1, rows))  # type: ignore[no-any-return]


@contextmanager
def adapted(model: PreTrainedModel) -> Iterator[None]:
    """Switch `model` to the hooks above for the time of an export, and back."""
    AttentionInterface.register(IMPLEMENTATION, window_attention)
    AttentionMaskInterface.register(IMPLEMENTATION, window_attention_mask)
    head = model.get_output_embeddings()
    attention, experts = model.config._attn_implementation, model.get_experts_implementation()
    model.set_attn_implementation(IMPLEMENTATION)
    if model._can_set_experts_implementation():
        model.set_experts_implementation(_EXPERTS)
    model.set_output_embeddings(RowSelectingHead(head))
    try:
        yield
    finally:
        model.set_output_embeddings(head)
        if model._can_set_experts_implementation():
            model.set_experts_implementation(experts)
        model.set_attn_implementation(attention)
