"""What a graph cannot carry is refused in one line: mask rules, extra tensors, cache use, and what stops a trace."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from specexport.context import quiet
from specexport.errors import CheckpointUnsupported
from specexport.export import check_supported, trace_graph
from specexport.export.adapter import (
    ScatterCache,
    WindowInputs,
    window_attention,
    window_attention_mask,
    window_inputs,
)
from specexport.export.trace import unsupported
from tests.specexport.export.architectures import EXPORTED
from tests.specexport.export.comparison import CAPACITY, VOCAB_SIZE
from tests.specexport.export.exported import random_model

Rule = Callable[[int, int, Tensor, Tensor], Any]


def inputs(width: int = 3) -> WindowInputs:
    return WindowInputs(
        position_ids=torch.arange(width)[None] + 5,
        cache_length=torch.tensor([5]),
        window_mask=torch.tril(torch.ones(1, width, width, dtype=torch.bool)),
        logits_rows=torch.arange(width)[None],
        capacity=16,
    )


def mask_of(rule: Rule, local_size: int | None = None) -> Tensor:
    with window_inputs(inputs()):
        return window_attention_mask(1, 3, 16, rule, local_size)


def causal(batch: int, head: int, query: Tensor, key: Tensor) -> Any:
    return key <= query


def test_a_causal_mask_shows_committed_rows_and_ancestors() -> None:
    expected = torch.arange(16)[None] <= torch.arange(5, 8)[:, None]
    assert torch.equal(mask_of(causal)[0, 0], expected)


def test_a_sliding_mask_shows_the_last_rows_only() -> None:
    def sliding(batch: int, head: int, query: Tensor, key: Tensor) -> Any:
        return (key <= query) & (query - key < 4)

    distance = torch.arange(5, 8)[:, None] - torch.arange(16)[None]
    assert torch.equal(mask_of(sliding, 4)[0, 0], (distance >= 0) & (distance < 4))


@pytest.mark.parametrize(
    ("rule", "local_size", "message"),
    [
        (lambda b, h, q, k: (k <= q) & (q // 4 == k // 4), None, "hides key"),  # chunked
        (lambda b, h, q, k: (k <= q) | (k < 3), None, "shows key"),  # prefix
        (lambda b, h, q, k: k >= 0, None, "shows key"),  # bidirectional
        (lambda b, h, q, k: (k <= q) & (q - k < 5), 4, "shows key"),  # not the window its layer declares
        (lambda b, h, q, k: (k <= q) & (q - k <= 3), 5, "hides key"),
        (lambda b, h, q, k: torch.ones(1)[k] * (k <= q), None, "depends on more than positions"),
    ],
)
def test_a_layer_that_attends_with_another_mask_is_refused(
    rule: Rule, local_size: int | None, message: str
) -> None:
    rows = torch.zeros(1, 2, 3, 8)
    with window_inputs(inputs()):
        mask = window_attention_mask(1, 3, 16, rule, local_size)
        with pytest.raises(CheckpointUnsupported, match=message) as failure:
            window_attention(torch.nn.Module(), rows, rows, rows, mask)
    assert "expected a" in str(failure.value)


def test_a_mask_that_no_layer_attends_with_is_not_refused() -> None:
    """Qwen2-MoE makes the mask of its sliding layers with a window of 0 where its config switches the window off."""

    def empty(batch: int, head: int, query: Tensor, key: Tensor) -> Any:
        return (key <= query) & (key > query)

    rows = torch.zeros(1, 2, 3, 8)
    with window_inputs(inputs()):
        unused = window_attention_mask(1, 3, 16, empty, 0)
        used = window_attention_mask(1, 3, 16, causal)
        window_attention(torch.nn.Module(), rows, rows, rows, used)
        with pytest.raises(CheckpointUnsupported, match=r"sliding window of 0 tokens.*expected a"):
            window_attention(torch.nn.Module(), rows, rows, rows, unused)


def test_a_tensor_that_the_graph_has_no_input_for_is_refused() -> None:
    rows = torch.zeros(1, 2, 3, 8)
    with window_inputs(inputs()), pytest.raises(CheckpointUnsupported, match="takes the tensor 'bias'"):
        window_attention(torch.nn.Module(), rows, rows, rows, None, bias=torch.zeros(3))


def test_a_mask_that_the_layer_changed_is_refused() -> None:
    rows = torch.zeros(1, 2, 3, 8)
    with window_inputs(inputs()), pytest.raises(CheckpointUnsupported, match="changes the attention mask"):
        window_attention(torch.nn.Module(), rows, rows, rows, torch.ones(1, 1, 3, 16, dtype=torch.bool))


def test_a_layer_that_writes_its_cache_twice_is_refused() -> None:
    past, rows = torch.zeros(1, 2, 16, 8), torch.zeros(1, 2, 3, 8)
    cache = ScatterCache([past], [past], torch.tensor([0]))
    cache.present[0] = (past, past)
    with pytest.raises(CheckpointUnsupported, match="layer 0 writes its KV cache twice"):
        cache.update(rows, rows, 0)


def test_a_refusal_inside_a_trace_keeps_its_own_words() -> None:
    try:
        try:
            raise CheckpointUnsupported("no place for it")
        except CheckpointUnsupported as inner:
            raise RuntimeError("a page\nof advice") from inner
    except RuntimeError as error:
        assert str(unsupported("some_model", error)) == "some_model: no place for it"


def test_an_operation_without_onnx_form_is_named() -> None:
    error = RuntimeError(
        "pages\nNo ONNX function found for <OpOverload(op='prims.odd', overload='default')>. More"
    )
    message = str(unsupported("some_model", error))
    assert message.startswith(
        "some_model cannot be exported: the operation prims.odd has no ONNX form; expected"
    )
    assert "\n" not in message


@pytest.mark.parametrize(
    ("mlp", "message"),
    [
        (lambda x: x * 2 if x.sum() > 0 else x, r"data-dependent .* in <lambda>"),
        (lambda x: torch.special.bessel_j0(x), r"the operation prims\.bessel_j0 has no ONNX form"),
        (lambda x: x + torch.zeros(5, 64), r"fixes input_ids to \[B, 5\] in its own code"),
    ],
    ids=["a branch on values", "an operator ONNX lacks", "a width written down"],
)
@pytest.mark.slow
def test_what_stops_a_trace_is_named(mlp: Callable[[Tensor], Tensor], message: str) -> None:
    sizes = next(a.sizes for a in EXPORTED if a.model_type == "llama")
    model = random_model("llama", {**sizes, "num_hidden_layers": 1})
    model.get_submodule("model.layers.0.mlp").forward = mlp
    with quiet():
        layout = check_supported(model)
        with pytest.raises(CheckpointUnsupported, match=message) as failure:
            trace_graph(model, layout, capacity=CAPACITY, vocab_size=VOCAB_SIZE)
    assert "\n" not in str(failure.value)


def test_a_model_that_does_not_run_in_pytorch_is_refused_by_its_sizes() -> None:
    sizes = next(a.sizes for a in EXPORTED if a.model_type == "llama")
    model = random_model("llama", sizes)
    model.get_submodule("model.layers.0.mlp").forward = lambda x: x @ torch.zeros(3, 3)
    with pytest.raises(CheckpointUnsupported, match="does not decode one token in PyTorch"):
        check_supported(model)
