"""The build side of the kind in `tests/bigram_kind.py`: a recipe's `draft: {kind: bigram, text: [...]}`.

Written as another distribution would write it: nothing in the packages knows it before `register`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper
from pydantic import NonNegativeInt

from specexport.cache.entries import text_sha256
from specexport.draft_kinds.canonical import TracedDraft
from specexport.draft_kinds.kind import FeatureKind
from specexport.draft_models import DraftTarget
from specexport.graph.canonical import CanonicalGraph
from specexport.graph.plan import DraftPlan, GraphPlan
from specexport.parity.draft import DraftParityReport
from specruntime.drafts import DraftSpec
from specruntime.engines.protocol import Context
from specruntime.manifest.graph import GraphSpec, Profile
from tests.bigram_kind import LOOKUP, BigramDraft, bigram_model

TABLE = "table.npy"


class BigramSection(FeatureKind):
    """What last followed each token of a text."""

    kind: Literal["bigram"]
    text: tuple[NonNegativeInt, ...]
    """Token ids."""
    k: int = 3
    """Tokens drafted per round."""

    @property
    def nodes(self) -> int:
        return self.k

    @property
    def default_widths(self) -> tuple[int, ...]:
        return (self.k + 1,)

    @property
    def source_name(self) -> str:
        return f"bigrams of {len(self.text)} tokens"

    @property
    def candidates(self) -> int:
        return 1

    def digest(self, target_digest: str) -> str:
        return text_sha256(json.dumps(self.text))

    def load(self, target: DraftTarget) -> onnx.ModelProto:
        return bigram_model(self.text, target.vocab_size)

    def trace(
        self, module: onnx.ModelProto, target: DraftTarget, *, capacity: int, tokens: int
    ) -> TracedDraft:
        (table,) = module.graph.initializer
        model = ir.from_proto(module)
        model.graph.outputs[0].shape = ir.Shape(["B", "R"])
        rows = numpy_helper.to_array(table)
        return TracedDraft(model, lambda directory: np.save(directory / TABLE, rows))

    def compare(self, context: Context, directory: Path) -> DraftParityReport:
        table, window = np.load(directory / TABLE), context.window(LOOKUP)
        wrong = 0
        for token, follower in enumerate(table):
            window.input_ids[0, 0] = token
            context.run(window)
            wrong += int(window.top_ids[0, 0] != follower)
        return DraftParityReport(float(wrong), 0.0, (), len(table), (1,), trees=False)

    def plan(self, canonical: Mapping[str, CanonicalGraph], *, runs_parts: bool) -> DraftPlan:
        return DraftPlan(draft=GraphPlan())

    def windows(self, prefill_chunk: int, outputs: Sequence[str]) -> tuple[Profile, ...]:
        return (Profile(name=LOOKUP, width=1, rows=1),)

    def spec(self, graph: GraphSpec | None, canonical: CanonicalGraph | None) -> DraftSpec:
        assert graph is not None
        return BigramDraft(k=self.k, graph=graph)
