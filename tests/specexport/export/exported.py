"""Traces each tiny model once per test run and saves its canonical graph and ONNX Runtime's variants."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from specexport.context import quiet
from specexport.export import check_supported, freeze_rope, trace_graph
from specexport.export.support import CacheLayout
from specexport.graph.files import GRAPH_NAME, save_graph
from specexport.graph.plan import PLAIN, GraphPlan
from specexport.passes import GraphPass, PassReport, run_passes
from specexport.passes.pipeline import onnxruntime_passes, plan_passes
from tests.made_once import made_once
from tests.specexport.export.architectures import EXPORTED, Architecture
from tests.specexport.export.comparison import CAPACITY, VOCAB_SIZE, Graph, Reference, random_ids, run_eager

CANONICAL, ONNXRUNTIME, TREES = "canonical", "onnxruntime", "trees"
REPORTS_NAME = "reports.json"
PLANS = {ONNXRUNTIME: PLAIN, TREES: GraphPlan(trees=True)}


def lowering(plan: GraphPlan = PLAIN) -> tuple[GraphPass, ...]:
    """The passes of a build for ONNX Runtime."""
    return (*plan_passes(plan), *onnxruntime_passes("cpu", plan))


def random_model(model_type: str, sizes: Mapping[str, Any], seed: int = 0) -> PreTrainedModel:
    """Eager attention, eager experts, and weights wide enough that every part of the model moves the logits."""
    config = AutoConfig.for_model(model_type, **sizes)
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    if model._can_set_experts_implementation():
        model.set_experts_implementation("eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim < 2:
                parameter.add_(torch.randn(parameter.shape) * 0.2)
            else:
                parameter.normal_(std=1.2 * parameter.shape[-1] ** -0.5)
        model.get_output_embeddings().weight[VOCAB_SIZE:] *= 4.0  # padded tokens would often win the argmax
    return model


@dataclass
class Exported:
    """A model and its graphs on disk: the canonical one, and each variant once it is asked for.

    The directory belongs to all workers of a test run: read it, write elsewhere.
    """

    architecture: Architecture
    model: PreTrainedModel
    layout: CacheLayout
    rope: str | None
    directory: Path

    def graph(self, variant: str) -> Graph:
        return Graph(self.path(variant))

    def path(self, variant: str) -> Path:
        """The ONNX file of a variant."""
        if variant != CANONICAL:
            made_once(self.directory / variant, lambda place: self._lower_and_report(variant, place))
        return self.directory / variant / GRAPH_NAME

    def lower(self, plan: GraphPlan, directory: Path) -> tuple[PassReport, ...]:
        """Writes the variant that `plan` asks for into `directory`, which is made."""
        model = ir.load(self.directory / CANONICAL / GRAPH_NAME)
        with quiet():
            reports = run_passes(model, lowering(plan))
        directory.mkdir()
        save_graph(model, directory)
        return reports

    def _lower_and_report(self, variant: str, directory: Path) -> None:
        reports = self.lower(PLANS[variant], directory)
        (directory / REPORTS_NAME).write_text(json.dumps([asdict(report) for report in reports]))

    @property
    def padded_vocab_size(self) -> int:
        return int(self.model.get_output_embeddings().weight.shape[0])

    @property
    def reports(self) -> tuple[PassReport, ...]:
        """What the passes of ONNX Runtime's plain variant did."""
        told = json.loads((self.path(ONNXRUNTIME).parent / REPORTS_NAME).read_text())
        return tuple(PassReport(r["name"], r["changed"], tuple(r["reasons"])) for r in told)

    @cached_property
    def references(self) -> list[Reference]:
        """Three sequences as long as the cache."""
        return [run_eager(self.model, random_ids(seed, CAPACITY)) for seed in range(3)]


def export(architecture: Architecture, directory: Path, *, capacity: int = CAPACITY) -> Exported:
    """The model of `architecture`, its graph in `directory`: traced now unless it is there."""
    with quiet():
        model = random_model(architecture.model_type, architecture.sizes)
        layout = check_supported(model)
        rope = freeze_rope(model, capacity)

        def trace(place: Path) -> None:
            place.mkdir()
            save_graph(trace_graph(model, layout, capacity=capacity, vocab_size=VOCAB_SIZE).model, place)

        made_once(directory / CANONICAL, trace)
    return Exported(architecture, model, layout, rope, directory)


class ExportedArchitectures:
    """The exports of this test run, made when first asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._made: dict[str, Exported] = {}

    def __getitem__(self, model_type: str) -> Exported:
        if model_type not in self._made:
            architecture = next(a for a in EXPORTED if a.model_type == model_type)
            self._made[model_type] = export(architecture, self._directory / model_type)
        return self._made[model_type]


@cache
def exports_under(base: Path) -> ExportedArchitectures:
    """One for all tests of a run, whose workers share `base`: tracing is what takes the time."""
    return ExportedArchitectures(base / "exported")
