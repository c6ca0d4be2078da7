"""A draft kind of its own, with a graph: a table of which token follows which, asked token by token.

Written as another distribution would write it: nothing in the packages knows it before `register`.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from specruntime.drafts import NOTHING, ChainSpec, Draft, Proposal, Room
from specruntime.engines.protocol import Context
from specruntime.engines.windows import run_counted
from specruntime.manifest.contracts import TOP_IDS, WINDOW, Contract
from specruntime.manifest.draft import check_one_row
from specruntime.manifest.graph import GraphSpec, Profile, TensorSpec
from specruntime.manifest.onnxruntime import OnnxRuntimeEngine
from specruntime.sampling.sampler import Sampler

LOOKUP = "lookup"  # the one profile of its graph


class BigramDraft(ChainSpec):
    """What most often followed the last token in some text, `k` times."""

    contract: ClassVar = Contract(
        inputs={"input_ids": WINDOW["input_ids"]},
        needed_inputs=("input_ids",),
        outputs={"top_ids": TOP_IDS},
        needed_outputs=("top_ids",),
        cached=False,
    )

    kind: Literal["bigram"] = "bigram"
    graph: GraphSpec

    def check(self, target: GraphSpec) -> None:
        check_one_row(self.graph, LOOKUP)

    def proposer(self, own: Context | None, target: Context | None, vocab_size: int) -> Draft:
        assert own is not None, "this kind has a graph"
        return BigramProposer(own, self.k)


class BigramProposer(Draft):
    """Asks the table once for each token."""

    def __init__(self, context: Context, k: int) -> None:
        super().__init__(k)
        self._context = context
        self._window = context.window(LOOKUP)

    def propose(self, tokens: NDArray[np.int64], room: Room, sampler: Sampler) -> Proposal:
        count = min(room.depth, room.nodes, self.k)
        if count < 1:
            return NOTHING
        ids = np.empty(count, np.int64)
        token = int(tokens[-1])
        for index in range(count):
            self._window.input_ids[0, 0] = token
            run_counted(self._context, self._window, self.counters)
            ids[index] = token = int(self._window.top_ids[0, 0])
        return Proposal(ids)

    def close(self) -> None:
        self._context.close()


def bigram_model(tokens: Sequence[int], vocab_size: int) -> onnx.ModelProto:
    """A graph that answers with what last followed a token in `tokens`, and with token 0 where nothing did."""
    table = np.zeros(vocab_size, np.int64)
    table[np.asarray(tokens[:-1], np.int64)] = tokens[1:]
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "input_ids"], ["top_ids"])],
        "bigram",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["B", "W"])],
        [helper.make_tensor_value_info("top_ids", TensorProto.INT64, ["B", "W"])],
        [numpy_helper.from_array(table, "table")],
    )
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])


def bigram_graph(file: str, target: GraphSpec) -> GraphSpec:
    """What the manifest says of `bigram_model`."""
    return GraphSpec(
        file=file,
        inputs=(TensorSpec(name="input_ids", dtype="int64", shape=("B", "W")),),
        outputs=(TensorSpec(name="top_ids", dtype="int64", shape=("B", "R")),),
        aliases=(),
        profiles=(Profile(name=LOOKUP, width=1, rows=1),),
        batch=target.batch,
        batch_sizes=target.batch_sizes,
        capacity=target.capacity,
        layers=0,
        vocab_size=target.vocab_size,
        padded_vocab_size=target.padded_vocab_size,
        engine=OnnxRuntimeEngine(minimum_version="1.23"),
    )
