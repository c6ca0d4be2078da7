"""The residual stream: found in every architecture, equal to transformers' own, and carried into the graph."""

import numpy as np
import onnxruntime
import pytest
import torch

from specexport.export import find_residual_stream, hidden_names, watching
from specexport.graph.plan import FeatureSpec, GraphPlan
from tests.specexport.export.architectures import EXPORTED, Architecture
from tests.specexport.export.comparison import (
    VOCAB_SIZE,
    Array,
    Shape,
    chain_step,
    fill_cache,
    random_ids,
    relative,
)
from tests.specexport.export.exported import CANONICAL, Exported, ExportedArchitectures, random_model

FILL, WIDTH = 20, 6
SHAPE = Shape(fills=(FILL,), valid=(WIDTH,), width=WIDTH)


@pytest.mark.parametrize("architecture", EXPORTED, ids=lambda architecture: architecture.model_type)
def test_hidden_states_are_those_of_transformers(architecture: Architecture) -> None:
    model = random_model(architecture.model_type, architecture.sizes)
    stream = find_residual_stream(model)
    assert not isinstance(stream, str), stream
    with watching(model, stream) as states, torch.no_grad():
        output = model(input_ids=torch.from_numpy(random_ids(3, 9))[None], output_hidden_states=True)
    *entering, normed = output.hidden_states  # transformers leaves out what leaves the last layer
    found = states.by_name()
    for layer, expected in enumerate(entering):
        assert torch.equal(found[f"hidden.{layer}"], expected)
    assert torch.equal(found["hidden.norm"], normed)


def test_layers_that_cannot_be_told_are_a_reason() -> None:
    model = random_model("llama", next(a.sizes for a in EXPORTED if a.model_type == "llama"))
    model.config.num_hidden_layers = 1  # runs the first layer only: the list of two is no longer a stream
    reason = find_residual_stream(model)
    assert isinstance(reason, str) and "llama has 0 lists of 1 modules" in reason


def eager_hidden(found: Exported) -> dict[str, Array]:
    """[FILL + WIDTH, hidden] of the first reference sequence, by name."""
    stream = find_residual_stream(found.model)
    assert not isinstance(stream, str)
    ids = torch.from_numpy(found.references[0].ids[: FILL + WIDTH])[None]
    with watching(found.model, stream) as states, torch.no_grad():
        found.model(input_ids=ids)
    return {name: state[0].numpy() for name, state in states.by_name().items()}


def run_outputs(path: str, found: Exported, outputs: tuple[str, ...]) -> dict[str, Array]:
    """`outputs` of one chain window over the first reference sequence."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    step = chain_step(found.references, SHAPE)
    fed = {
        "input_ids": step.ids,
        "position_ids": step.positions,
        "cache_length": step.lengths,
        "window_mask": step.mask,
        "logits_rows": step.logits_rows,
        "query_lengths": step.valid.astype(np.int32),
    }
    pasts = [value for value in session.get_inputs() if value.name.startswith("past_")]
    cache = [np.zeros((1, *value.shape[1:]), np.float32) for value in pasts]
    fill_cache(cache, found.references, SHAPE.fills)
    fed |= {value.name: rows for value, rows in zip(pasts, cache, strict=True)}
    taken = {value.name for value in session.get_inputs()}
    results = session.run(list(outputs), {name: array for name, array in fed.items() if name in taken})
    return dict(zip(outputs, results, strict=True))


@pytest.mark.parametrize("model_type", [a.model_type for a in EXPORTED if a.asked_for])
def test_the_canonical_graph_carries_them(exported: ExportedArchitectures, model_type: str) -> None:
    found = exported[model_type]
    names = hidden_names(found.layout.layers)
    outputs = run_outputs(str(found.path(CANONICAL)), found, names)
    for name, expected in eager_hidden(found).items():
        assert relative(outputs[name][0], expected[FILL:]) < 1e-4, name


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "gpt2"])
@pytest.mark.parametrize("projected", [True, False], ids=["projected", "as they are"])
def test_features_equal_pytorch(
    exported: ExportedArchitectures,
    model_type: str,
    projected: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    found, taps = exported[model_type], ("hidden.1", "hidden.2", "hidden.0")
    hidden = np.concatenate([eager_hidden(found)[tap][FILL:] for tap in taps], axis=-1)
    projection = None
    if projected:
        projection = np.random.default_rng(0).normal(size=(40, hidden.shape[-1])).astype(np.float32)
        hidden = hidden @ projection.T
    directory = tmp_path_factory.mktemp("features") / "graph"
    found.lower(GraphPlan(trees=True, features=FeatureSpec(taps, projection)), directory)
    features = run_outputs(str(directory / "graph.onnx"), found, ("features", "logits"))
    assert relative(features["features"][0], hidden) < 1e-4
    expected = found.references[0].logits[FILL : FILL + WIDTH, :VOCAB_SIZE]
    assert relative(features["logits"][0, :, :VOCAB_SIZE], expected) < 1e-4
