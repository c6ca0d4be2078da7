"""Defines the tensors that each kind of graph must and may have in addition to its cache: names, dtypes, shapes.

The one list of them; `tensor_checks` holds a manifest to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from specruntime.manifest.graph import Dimension

ANY: Dimension = 0  # a size the graph is free to choose; no tensor of a manifest has one of 0
VOCABULARY: Dimension = -1  # the graph's padded_vocab_size
Tensor = tuple[str, tuple[Dimension, ...]]  # dtype, shape
DRAFTING = "draft_"  # prefix of what a second path of the target computes

WINDOW: dict[str, Tensor] = {
    "input_ids": ("int64", ("B", "W")),
    "cache_length": ("int64", ("B",)),
    "position_ids": ("int64", ("B", "W")),
    "logits_rows": ("int64", ("B", "R")),
    "window_mask": ("bool", ("B", "W", "W")),
    "query_lengths": ("int32", ("B",)),
}
HIDDEN: dict[str, Tensor] = {"hidden": ("float32", ("B", "W", ANY))}
LOGITS: Tensor = ("float32", ("B", "R", VOCABULARY))
TOP_IDS: Tensor = ("int64", ("B", "R"))


@dataclass(frozen=True)
class Contract:
    """The tensors of one kind of graph. `drafting`: its outputs may have counterparts named draft_*, the cache's
    included.
    """

    inputs: Mapping[str, Tensor]
    needed_inputs: tuple[str, ...]
    outputs: Mapping[str, Tensor]
    needed_outputs: tuple[str, ...]
    cached: bool = True
    drafting: bool = False
    stepping: bool = False  # it decodes token by token, so a window of width 1 judges


TARGET = Contract(
    inputs=WINDOW,
    needed_inputs=("input_ids", "cache_length"),
    outputs={
        "logits": LOGITS,
        "top_ids": TOP_IDS,
        "features": ("float32", ("B", "W", ANY)),
        f"{DRAFTING}logits": LOGITS,
        f"{DRAFTING}top_ids": TOP_IDS,
    },
    needed_outputs=("logits", "top_ids"),
    drafting=True,
    stepping=True,
)
MODEL = Contract(
    inputs=WINDOW,
    needed_inputs=("input_ids", "cache_length"),
    outputs={"logits": LOGITS, "top_ids": TOP_IDS},
    needed_outputs=("logits", "top_ids"),
    stepping=True,
)
