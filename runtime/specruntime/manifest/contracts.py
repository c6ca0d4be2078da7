"""Which tensors each kind of graph must and may have beside its cache: names, dtypes, shapes.

The one list of them; `tensor_checks` holds a manifest to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from specruntime.manifest.graph import Dimension

ANY: Dimension = 0  # a size the graph is free to choose; no tensor of a manifest has one of 0
VOCABULARY: Dimension = -1  # the graph's padded_vocab_size
Tensor = tuple[str, tuple[Dimension, ...]]  # dtype, shape

_WINDOW: dict[str, Tensor] = {
    "input_ids": ("int64", ("B", "W")),
    "cache_length": ("int64", ("B",)),
    "position_ids": ("int64", ("B", "W")),
    "logits_rows": ("int64", ("B", "R")),
    "window_mask": ("bool", ("B", "W", "W")),
    "query_lengths": ("int32", ("B",)),
}
_HIDDEN: dict[str, Tensor] = {"hidden": ("float32", ("B", "W", ANY))}
_LOGITS: Tensor = ("float32", ("B", "R", VOCABULARY))
_TOP_IDS: Tensor = ("int64", ("B", "R"))


@dataclass(frozen=True)
class Contract:
    """The tensors of one kind of graph. `drafting`: its outputs may have twins named draft_*, the cache's included."""

    inputs: Mapping[str, Tensor]
    needed_inputs: tuple[str, ...]
    outputs: Mapping[str, Tensor]
    needed_outputs: tuple[str, ...]
    cached: bool = True
    drafting: bool = False


TARGET = Contract(
    inputs=_WINDOW,
    needed_inputs=("input_ids", "cache_length"),
    outputs={
        "logits": _LOGITS,
        "top_ids": _TOP_IDS,
        "features": ("float32", ("B", "W", ANY)),
        "draft_logits": _LOGITS,
        "draft_top_ids": _TOP_IDS,
    },
    needed_outputs=("logits", "top_ids"),
    drafting=True,
)
MODEL = Contract(
    inputs=_WINDOW,
    needed_inputs=("input_ids", "cache_length"),
    outputs={"logits": _LOGITS, "top_ids": _TOP_IDS},
    needed_outputs=("logits", "top_ids"),
)
EAGLE = Contract(
    inputs=_WINDOW | _HIDDEN,
    needed_inputs=("input_ids", "cache_length", "hidden"),
    outputs={
        "topk_ids": ("int64", ("B", "R", ANY)),
        "topk_logprobs": ("float32", ("B", "R", ANY)),
        "next_hidden": ("float32", ("B", "W", ANY)),
        "logits": _LOGITS,
    },
    needed_outputs=("topk_ids", "topk_logprobs", "next_hidden"),
)
MEDUSA = Contract(
    inputs=_HIDDEN,
    needed_inputs=("hidden",),
    outputs={
        "topk_ids": ("int64", ("B", "R", ANY, ANY)),
        "topk_logprobs": ("float32", ("B", "R", ANY, ANY)),
    },
    needed_outputs=("topk_ids", "topk_logprobs"),
    cached=False,
)
