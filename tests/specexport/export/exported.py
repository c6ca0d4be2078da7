"""Traces each tiny model once per test session and saves its canonical graph and ONNX Runtime's variants."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from specexport.export import TracedGraph, check_supported, freeze_rope, trace_graph
from specexport.graph_files import GRAPH_NAME, save_graph
from specexport.graph_plan import PLAIN, GraphPlan
from specexport.passes import GraphPass, PassReport, run_passes
from specexport.passes.onnxruntime import onnxruntime_passes
from specexport.passes.planned import plan_passes
from specexport.quiet import quiet
from tests.specexport.export.architectures import EXPORTED, Architecture
from tests.specexport.export.comparison import CAPACITY, VOCAB_SIZE, Graph, Reference, random_ids, run_eager

CANONICAL, ONNXRUNTIME, TREES = "canonical", "onnxruntime", "trees"
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
    """A model and its graphs on disk: the canonical one, and each variant once it is asked for."""

    architecture: Architecture
    model: PreTrainedModel
    rope: str | None
    traced: TracedGraph  # its model is the canonical graph as saved
    directory: Path
    _reports: dict[str, tuple[PassReport, ...]] = field(default_factory=dict)

    def graph(self, variant: str) -> Graph:
        return Graph(self.path(variant))

    def path(self, variant: str) -> Path:
        """The ONNX file of a variant."""
        if variant != CANONICAL and variant not in self._reports:
            self._reports[variant] = self.lower(PLANS[variant], self.directory / variant)
        return self.directory / variant / GRAPH_NAME

    def lower(self, plan: GraphPlan, directory: Path) -> tuple[PassReport, ...]:
        """Writes the variant that `plan` asks for into `directory`, which is made."""
        model = ir.load(self.directory / CANONICAL / GRAPH_NAME)
        with quiet():
            reports = run_passes(model, lowering(plan))
        directory.mkdir()
        save_graph(model, directory)
        return reports

    @property
    def reports(self) -> tuple[PassReport, ...]:
        """What the passes of ONNX Runtime's plain variant did."""
        self.path(ONNXRUNTIME)
        return self._reports[ONNXRUNTIME]

    @cached_property
    def references(self) -> list[Reference]:
        """Three sequences as long as the cache."""
        return [run_eager(self.model, random_ids(seed, CAPACITY)) for seed in range(3)]


def export(architecture: Architecture, directory: Path, *, capacity: int = CAPACITY) -> Exported:
    logging.disable(logging.INFO)  # or pytest records the tracer's debug log, at the price of another trace
    with quiet():
        model = random_model(architecture.model_type, architecture.sizes)
        layout = check_supported(model)
        rope = freeze_rope(model, capacity)
        traced = trace_graph(model, layout, capacity=capacity, vocab_size=VOCAB_SIZE)
        (directory / CANONICAL).mkdir(parents=True)
        save_graph(traced.model, directory / CANONICAL)
    logging.disable(logging.NOTSET)
    return Exported(architecture, model, rope, traced, directory)


class ExportedArchitectures:
    """The exports of this test session, made when first asked for."""

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
    """One for all tests of a session, whose temporary directory is `base`: tracing is what takes the time."""
    return ExportedArchitectures(base / "exported")
