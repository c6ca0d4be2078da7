"""The operators as ONNX Runtime sees them: what they compute, and what they refuse with words instead of a crash."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from tests.kernels.nodes import (
    Array,
    kernels,
    node_model,
    open_model,
    pack_float32,
    pack_int8,
    usable_paths,
)

FLOAT, INT8 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT8
RNG = np.random.default_rng(20)
N, K = 24, 40
MATRIX = RNG.standard_normal((N, K)).astype(np.float32)
LEVELS = RNG.integers(0, 256, (N, 64)).astype(np.uint8)
SCALES = RNG.uniform(0.01, 0.02, (N, 2)).astype(np.float16)


def matmul(
    x: Array, bias: Array | None = None, weights: Array | None = None, **changes: Any
) -> onnx.ModelProto:
    weights = pack_float32(MATRIX) if weights is None else weights
    attributes = {"N": N, "K": K, "format": "fp32", "rows": "float", **changes}
    return node_model(
        "WindowMatMul", {"X": x, "weights": weights, "bias": bias}, {"Y": FLOAT},
        constants={"weights": weights}, **{k: v for k, v in attributes.items() if v is not None},
    )  # fmt: skip


@pytest.mark.parametrize("path", usable_paths())
@pytest.mark.parametrize("shape", [(3, K), (2, 3, K), (1, K), (0, K)])
def test_a_product_of_float_weights(path: str, shape: tuple[int, ...]) -> None:
    rows = RNG.standard_normal(shape).astype(np.float32)
    bias = RNG.standard_normal(N).astype(np.float32)
    (found,) = open_model(matmul(rows, bias), path).run(None, {"X": rows, "bias": bias})
    assert found.shape == (*shape[:-1], N)
    np.testing.assert_allclose(found, rows @ MATRIX.T + bias, atol=1e-4)


def test_a_product_of_integer_weights_is_equal_on_every_path_and_number_of_threads() -> None:
    rows = RNG.standard_normal((7, 64)).astype(np.float32)
    model = matmul(rows, weights=pack_int8(LEVELS, SCALES), K=64, format="int8", rows="fine")
    runs = [
        open_model(model, path, threads).run(None, {"X": rows})[0]
        for path in usable_paths()
        for threads in (1, 2)
    ]
    dequantised = (LEVELS.astype(np.float32) - 128) * np.repeat(SCALES.astype(np.float32), 32, axis=1)
    np.testing.assert_allclose(runs[0], rows @ dequantised.T, atol=1e-2)
    for run in runs[1:]:
        np.testing.assert_array_equal(run, runs[0])


def test_rows_of_the_embedding_are_those_of_the_product() -> None:
    ids = np.array([[0, 5], [23, 1]], np.int64)
    weights = pack_int8(LEVELS, SCALES)
    model = node_model(
        "WindowEmbedding", {"ids": ids, "weights": weights}, {"Y": FLOAT}, constants={"weights": weights},
        N=N, K=64, format="int8",
    )  # fmt: skip
    session = open_model(model)
    (found,) = session.run(None, {"ids": ids})
    dequantised = (LEVELS.astype(np.float32) - 128) * np.repeat(SCALES.astype(np.float32), 32, axis=1)
    np.testing.assert_allclose(found, dequantised[ids], rtol=1e-6)
    with pytest.raises(Exception, match=r"WindowEmbedding tested: .*24"):
        session.run(None, {"ids": np.array([[24, 0]], np.int64)})
    with pytest.raises(Exception, match=r"WindowEmbedding tested: .*-1"):
        session.run(None, {"ids": np.array([[0, -1]], np.int64)})


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no N": ({"N": None}, "attribute N is missing"),
    "N of another type": ({"N": "24"}, "attribute N has another type"),
    "N of zero": ({"N": 0}, "attribute N is 0"),
    "N beyond the bytes": ({"N": 4000}, "bytes"),
    "K beyond the bytes": ({"K": 41}, "bytes"),
    "K that overflows": ({"K": 2**40}, "attribute K is"),
    "format": ({"format": "int3"}, "attribute format is 'int3'"),
    "rows": ({"rows": "columns"}, "attribute rows is 'columns'"),
    "rows of floats": ({"rows": "fine"}, "float weights take rows = float"),
    "activation": ({"activation": "relu"}, "attribute activation is 'relu'"),
    "scale type": ({"scale_type": "fp8"}, "attribute scale_type is 'fp8'"),
    "flag": ({"has_zeros": 2}, "attribute has_zeros is 2"),
    "block": ({"format": "int8", "rows": "blocks", "block": 48}, "block"),
    "integers in bytes of floats": ({"format": "int8", "rows": "blocks"}, "bytes"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_does_not_fit_is_refused_when_the_graph_is_opened(case: str) -> None:
    changes, words = WRONG[case]
    with pytest.raises(Exception, match="WindowMatMul tested: ") as caught:
        open_model(matmul(np.zeros((1, K), np.float32), **changes))
    assert words in str(caught.value)


def test_weights_must_be_packed_bytes_of_an_initializer() -> None:
    rows, weights = np.zeros((1, K), np.float32), pack_float32(MATRIX)
    inputs = {"X": rows, "weights": weights}
    attributes: dict[str, Any] = {"N": N, "K": K, "format": "fp32"}
    with pytest.raises(Exception, match="weights is not an initializer"):
        open_model(node_model("WindowMatMul", inputs, {"Y": FLOAT}, **attributes))
    with pytest.raises(Exception, match=r"weights are uint8 \[2, \d+\], expected packed bytes"):
        open_model(matmul(rows, weights=weights.reshape(2, -1)))


@pytest.mark.parametrize(
    ("feeds", "words"),
    [
        ({"X": np.zeros((2, K + 1), np.float32)}, "X has shape [2, 41], expected [..., 40]"),
        ({"X": np.zeros((2, 1), np.float32)}, "X has shape [2, 1]"),
        ({"bias": np.zeros(N - 1, np.float32)}, "bias has shape [23], expected [24]"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_when_it_runs(feeds: dict[str, Array], words: str) -> None:
    there = {"X": np.zeros((2, K), np.float32), "bias": np.zeros(N, np.float32)}
    session = open_model(matmul(there["X"], there["bias"]))
    with pytest.raises(Exception, match="WindowMatMul tested: ") as caught:
        session.run(None, there | feeds)
    assert words in str(caught.value)
    assert session.run(None, there)[0].shape == (2, N)


def test_one_session_serves_several_threads_and_several_sessions_one_library() -> None:
    rows = [RNG.standard_normal((width, 64)).astype(np.float32) for width in (1, 3, 8, 17)]
    model = matmul(rows[0], weights=pack_int8(LEVELS, SCALES), K=64, format="int8", rows="blocks")
    sessions = [open_model(model, path) for path in usable_paths()]
    alone = [sessions[0].run(None, {"X": each})[0] for each in rows]

    def answer(index: int) -> Array:
        found: Array = sessions[index % len(sessions)].run(None, {"X": rows[index % len(rows)]})[0]
        return found

    with ThreadPoolExecutor(4) as pool:
        for index, found in enumerate(pool.map(answer, range(200))):
            np.testing.assert_array_equal(found, alone[index % len(rows)])


def test_weights_are_used_where_they_are_mapped(tmp_path: Path) -> None:
    big, width = 512, 1024
    matrix = RNG.standard_normal((big, width)).astype(np.float32)
    rows = RNG.standard_normal((2, width)).astype(np.float32)
    model = matmul(rows, weights=pack_float32(matrix), N=big, K=width)
    onnx.save(
        model, tmp_path / "graph.onnx", save_as_external_data=True, location="graph.weights", size_threshold=0
    )
    settings = ort.SessionOptions()
    settings.register_custom_ops_library(str(kernels.library_path()))
    session = ort.InferenceSession(tmp_path / "graph.onnx", settings, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"X": rows})[0], rows @ matrix.T, atol=1e-3)
    # What is written into the file shows in the next answer: the operator reads the mapping itself.
    with (tmp_path / "graph.weights").open("r+b") as file:
        file.write(bytes(matrix.nbytes))
    assert not session.run(None, {"X": rows})[0].any()


HEADS, GROUPS, SIZE, CAPACITY = 4, 2, 8, 16


def attention_inputs(width: int = 3, batch: int = 1, cache: str = "fp32") -> dict[str, Array | None]:
    packed = RNG.standard_normal((batch, width, (HEADS + 2 * GROUPS) * SIZE)).astype(np.float32)
    row = SIZE if cache == "fp32" else SIZE + 4
    dtype = np.float32 if cache == "fp32" else np.int8
    angles = np.arange(CAPACITY)[:, None] / 10.0 ** np.arange(SIZE // 2)
    return {
        "query": packed,
        "key": None,
        "value": None,
        "past_key": np.zeros((batch, GROUPS, CAPACITY, row), dtype),
        "past_value": np.zeros((batch, GROUPS, CAPACITY, row), dtype),
        "cache_length": np.zeros(batch, np.int64),
        "query_lengths": np.full(batch, width, np.int32),
        "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
        "position_ids": None,
        "window_mask": None,
        "sinks": None,
    }


def attention(inputs: dict[str, Array | None], stored: str = "fp32", **changes: Any) -> onnx.ModelProto:
    kind = FLOAT if stored == "fp32" else INT8
    attributes = {
        "num_heads": HEADS, "kv_num_heads": GROUPS, "scale": SIZE**-0.5, "softcap": 0.0, "local_window_size": -1,
        "do_rotary": 1, "rotary_interleaved": 0, "cache": stored, **changes,
    }  # fmt: skip
    outputs = {"out": FLOAT, "present_key": kind, "present_value": kind}
    return node_model("WindowAttention", inputs, outputs, **attributes)


def fed(inputs: dict[str, Array | None]) -> dict[str, Array]:
    return {name: value for name, value in inputs.items() if value is not None}


def expected(inputs: dict[str, Array | None]) -> Array:
    """Causal attention with rotary embedding from position 0, in float64."""
    there = {name: value.astype(np.float64) for name, value in fed(inputs).items()}
    batch, width, _ = there["query"].shape
    rows = there["query"].reshape(batch, width, HEADS + 2 * GROUPS, SIZE)
    half, cos, sin = SIZE // 2, there["cos"][:width, None], there["sin"][:width, None]

    def turned(x: Array) -> Array:
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    query, key = turned(rows[:, :, :HEADS]), turned(rows[:, :, HEADS : HEADS + GROUPS])
    value = rows[:, :, HEADS + GROUPS :]
    key, value = (np.repeat(each, HEADS // GROUPS, axis=2) for each in (key, value))
    scores = np.einsum("bihd,bjhd->bhij", query, key) * SIZE**-0.5
    scores = np.where(np.tri(width, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out: Array = np.einsum("bhij,bjhd->bihd", weights, value).reshape(batch, width, HEADS * SIZE)
    return out


@pytest.mark.parametrize("path", usable_paths())
@pytest.mark.parametrize(("cache", "tolerance"), [("fp32", 1e-5), ("int8", 0.05)])
def test_attention_writes_its_cache_and_attends(path: str, cache: str, tolerance: float) -> None:
    inputs = attention_inputs(cache=cache, batch=2)
    found, key, value = open_model(attention(inputs, cache), path).run(None, fed(inputs))
    np.testing.assert_allclose(found, expected(inputs), atol=tolerance)
    past = inputs["past_key"]
    assert past is not None and not past.any()  # fed by value, so the past is copied and stays
    assert key.dtype == past.dtype and key[:, :, :3].any() and not key[:, :, 3:].any()
    assert value[:, :, :3].any() and not value[:, :, 3:].any()


@pytest.mark.parametrize("cache", ["fp32", "int8"])
def test_attention_writes_in_place_where_past_and_present_are_one_buffer(cache: str) -> None:
    inputs = attention_inputs(cache=cache)
    session = open_model(attention(inputs, cache))
    alone = session.run(None, fed(inputs))
    there = fed(inputs)
    out = np.zeros((1, 3, HEADS * SIZE), np.float32)
    bind(session, there, {"out": out, "present_key": there["past_key"], "present_value": there["past_value"]})
    np.testing.assert_array_equal(out, alone[0])
    np.testing.assert_array_equal(there["past_key"], alone[1])
    np.testing.assert_array_equal(there["past_value"], alone[2])


def test_caches_that_overlap_otherwise_are_refused() -> None:
    inputs = attention_inputs()
    session, there = open_model(attention(inputs)), fed(inputs)
    block = np.zeros((2, *there["past_key"].shape), np.float32)
    there["past_key"], there["past_value"] = block[0], np.zeros_like(block[1])
    out = np.zeros((1, 3, HEADS * SIZE), np.float32)
    shifted = block.reshape(-1)[8 : 8 + block[0].size].reshape(block[0].shape)
    with pytest.raises(Exception, match="past_key overlaps its output"):
        bind(session, there, {"out": out, "present_key": shifted, "present_value": there["past_value"]})
    with pytest.raises(Exception, match="same memory"):
        bind(
            session, there, {"out": out, "present_key": there["past_key"], "present_value": there["past_key"]}
        )


def bind(session: Any, inputs: dict[str, Array], outputs: dict[str, Array]) -> None:
    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_input(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    for name, array in outputs.items():
        binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
    session.run_with_iobinding(binding)


WRONG_ATTRIBUTES: dict[str, tuple[dict[str, Any], str]] = {
    "heads": ({"num_heads": 0}, "attribute num_heads is 0"),
    "cache": ({"cache": "int4"}, "attribute cache is 'int4'"),
    "rotary": ({"do_rotary": 3}, "attribute do_rotary is 3"),
    "scale": ({"scale": "large"}, "attribute scale has another type"),
}


@pytest.mark.parametrize("case", WRONG_ATTRIBUTES)
def test_attributes_of_attention(case: str) -> None:
    changes, words = WRONG_ATTRIBUTES[case]
    with pytest.raises(Exception, match="WindowAttention tested: ") as caught:
        open_model(attention(attention_inputs(), **changes))
    assert words in str(caught.value)


WRONG_FEEDS: dict[str, tuple[dict[str, Array], str]] = {
    "query": (
        {"query": np.zeros((1, 3, 32), np.float32)},
        "query has shape [1, 3, 32], expected [1, width, 64]",
    ),
    "batch": ({"query": np.zeros((2, 3, 64), np.float32)}, "query has shape"),
    "past_value": ({"past_value": np.zeros((1, GROUPS, 8, SIZE), np.float32)}, "past_value has shape"),
    "kv heads": ({"past_key": np.zeros((1, 3, CAPACITY, SIZE), np.float32)}, "past_key has shape"),
    "lengths": ({"cache_length": np.zeros(2, np.int64)}, "cache_length has shape [2], expected [1]"),
    "query_lengths": ({"query_lengths": np.zeros(2, np.int32)}, "query_lengths has shape"),
    "cos": ({"cos": np.zeros((CAPACITY, 9), np.float32)}, "sin has shape"),
    "full": ({"cache_length": np.array([CAPACITY - 2])}, "cache"),
    "negative": ({"cache_length": np.array([-1])}, "cache"),
    "huge": ({"cache_length": np.array([2**62])}, "cache"),
    "too many rows": ({"query_lengths": np.array([4], np.int32)}, "query_lengths"),
    "negative rows": ({"query_lengths": np.array([-1], np.int32)}, "query_lengths"),
}


@pytest.mark.parametrize("case", WRONG_FEEDS)
def test_feeds_of_attention(case: str) -> None:
    feeds, words = WRONG_FEEDS[case]
    inputs = attention_inputs()
    session = open_model(attention(inputs))
    with pytest.raises(Exception, match="WindowAttention tested: ") as caught:
        session.run(None, fed(inputs) | feeds)
    assert words in str(caught.value)
    assert np.isfinite(session.run(None, fed(inputs))[0]).all()


def test_a_cache_of_another_type_than_the_attribute_says() -> None:
    inputs = attention_inputs(cache="int8")
    with pytest.raises(Exception, match="past_key has type int8, expected float32"):
        open_model(attention(inputs, "int8", cache="fp32")).run(None, fed(inputs))
