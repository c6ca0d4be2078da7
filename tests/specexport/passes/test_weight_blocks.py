"""Weights as integers: the checkpoint's own grid is found and kept, other weights are rounded within half a step."""

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray

from specexport.passes.weight_blocks import quantise_blocks, quantise_channels

BLOCK = 32


def affine_weights(seed: int = 0) -> NDArray[np.float32]:
    """[24, 96] as a 4-bit format with a scale and a minimum per block stores them, both in fp16."""
    draw = np.random.default_rng(seed)
    steps = draw.uniform(0.01, 0.2, (24, 3, 1)).astype(np.float16).astype(np.float32)
    lowest = draw.uniform(-1.6, -0.05, (24, 3, 1)).astype(np.float16).astype(np.float32)
    levels = draw.integers(0, 16, (24, 3, BLOCK))
    levels[..., :2] = 0, 15
    found: NDArray[np.float32] = (levels * steps + lowest).reshape(24, 96).astype(np.float32)
    return found


def symmetric_weights() -> NDArray[np.float32]:
    """[24, 96] as an 8-bit format with a scale per block stores them."""
    draw = np.random.default_rng(1)
    steps = draw.uniform(0.001, 0.02, (24, 3, 1)).astype(np.float16).astype(np.float32)
    levels = draw.integers(-127, 128, (24, 3, BLOCK))
    levels[..., 0] = 127
    found: NDArray[np.float32] = (levels * steps).reshape(24, 96).astype(np.float32)
    return found


def free_weights(columns: int = 96) -> NDArray[np.float32]:
    return np.random.default_rng(2).standard_normal((24, columns)).astype(np.float32)


def test_four_bits_keep_an_affine_grid_to_the_last_bit() -> None:
    weights = affine_weights()
    found = quantise_blocks(weights, 4, BLOCK)
    assert found.exact == 1.0 and found.minimum is not None
    assert np.abs(found.dequantised() - weights).max() < 1e-6


def test_eight_bits_keep_a_symmetric_grid_to_the_last_bit() -> None:
    weights = symmetric_weights()
    found = quantise_blocks(weights, 8, BLOCK)
    assert found.exact == 1.0 and found.zeros is None
    assert np.abs(found.dequantised() - weights).max() < 1e-7


def test_eight_bits_move_the_blocks_of_an_affine_grid_and_keep_the_distances_in_them() -> None:
    weights = affine_weights()
    found = quantise_blocks(weights, 8, BLOCK)
    moved = (found.dequantised() - weights).reshape(24, 3, BLOCK)
    assert np.ptp(moved, axis=-1).max() < 1e-6
    plain = np.ptp(weights.reshape(24, 3, BLOCK), axis=-1) / 255 / 2
    assert np.abs(moved).mean() < plain.mean() / 2, "no better than rounding each weight on its own"


@pytest.mark.parametrize(("bits", "steps"), [(8, 255), (4, 15)])
@pytest.mark.parametrize("columns", [96, 80])
def test_other_weights_are_rounded_within_a_step(bits: int, steps: int, columns: int) -> None:
    weights = free_weights(columns)
    found = quantise_blocks(weights, bits, BLOCK)
    assert found.exact == 0.0
    error = np.abs(found.dequantised()[:, :columns] - weights)
    assert error.max() < 2 * np.abs(weights).max() / steps


def test_a_constant_block_and_a_block_of_zeros_survive() -> None:
    weights = affine_weights()
    weights[0, :BLOCK], weights[1, :BLOCK] = 0.25, 0.0
    found = quantise_blocks(weights, 4, BLOCK).dequantised()
    assert np.abs(found - weights).max() < 1e-6


def test_blocks_far_from_zero_keep_their_minimum_as_a_number_of_its_own_or_are_rounded() -> None:
    weights = affine_weights() + 100
    assert np.abs(quantise_blocks(weights, 8, BLOCK).dequantised() - weights).max() < 1e-4
    table = quantise_blocks(weights, 8, BLOCK, minima=False)
    assert table.rounded and np.abs(table.dequantised() - weights).max() < 0.5


def test_channels_have_one_scale_each() -> None:
    weights = free_weights()
    weights[3] = 0
    values, scales = quantise_channels(weights)
    assert values.min() >= -127
    assert np.abs(values * scales[:, None] - weights).max() <= scales.max() / 2 + 1e-6


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("value", [0.0, 0.00123, -0.05])
def test_a_block_of_equal_weights_stays_what_it_is(bits: int, value: float) -> None:
    weights = affine_weights()
    weights[0, :32] = value
    stored = quantise_blocks(weights, bits, 32)
    np.testing.assert_allclose(stored.dequantised()[0, :32], np.float32(value), rtol=1e-6, atol=0)
    largest = np.abs(stored.values[0, 0] - 8.0).max() * stored.scales[0, 0]
    assert bits == 8 or largest < 1e-30, "the rounding of a row that meets it costs nothing"


def stored_as(name: str, rows: int = 24, columns: int = 512) -> NDArray[np.float32]:
    """[rows, columns] by the `gguf` package: its own quantisation, or blocks of random levels under scales of the size
    that a model's have, for the types that the package only reads."""
    kind = gguf.GGMLQuantizationType[name]
    draw = np.random.default_rng(int(kind))
    try:
        weights = draw.standard_normal((rows, columns)).astype(np.float32)
        blocks = gguf.quants.quantize(weights, kind)
    except NotImplementedError:
        size, width = gguf.GGML_QUANT_SIZES[kind]
        blocks = draw.integers(0, 256, (rows * columns // size, width)).astype(np.uint8)
        for place, scale in _SCALES[name].items():
            blocks[:, place : place + 2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
        blocks = blocks.reshape(rows, -1)
    found: NDArray[np.float32] = gguf.quants.dequantize(blocks, kind).reshape(rows, columns)
    return found


# Where a block's fp16 scales lie, and values for them: steps and minima of a weight matrix.
_SCALES = {
    "Q2_K": {80: 0.002, 82: 0.003},
    "Q3_K": {108: 0.002},
    "Q4_K": {0: 0.0003, 2: 0.0011},
    "Q5_K": {0: 0.0003, 2: 0.0011},
    "Q6_K": {208: 0.0002},
    "IQ4_NL": {0: 0.002},
    "IQ4_XS": {0: 0.0002},
}


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("Q4_0", 32),
        ("Q5_0", 32),
        ("Q5_1", 32),
        ("Q8_0", 32),
        ("Q3_K", 16),
        ("Q5_K", 32),
        ("Q6_K", 16),
        ("IQ4_NL", 32),
        ("IQ4_XS", 32),
        ("MXFP4", 32),
    ],
)
def test_eight_bits_keep_what_a_gguf_type_stores_where_an_integer_and_a_minimum_can_say_it(
    name: str, block: int
) -> None:
    weights = stored_as(name)
    found = quantise_blocks(weights, 8, BLOCK)
    assert (found.exact, found.rounded, found.block) == (1.0, False, block)
    assert np.abs(found.dequantised() - weights).max() <= 2e-6 * np.abs(weights).max()


@pytest.mark.parametrize(
    ("name", "block"), [("Q2_K", 16), ("Q3_K", 16), ("Q4_0", 32), ("Q4_1", 32), ("Q4_K", 32)]
)
def test_four_bits_keep_a_type_of_at_most_16_levels_and_eight_bits_do_not_round_it(
    name: str, block: int
) -> None:
    weights = stored_as(name)
    four, eight = quantise_blocks(weights, 4, BLOCK), quantise_blocks(weights, 8, BLOCK)
    assert (four.exact, four.block) == (1.0, block)
    assert np.abs(four.dequantised() - weights).max() <= 2e-6 * np.abs(weights).max()
    moved = (eight.dequantised() - weights).reshape(24, -1, block)
    assert not eight.rounded and np.ptp(moved, axis=-1).max() < 1e-6


def test_a_matrix_packed_of_several_types_keeps_each() -> None:
    """Query and key in Q4_K, value in Q6_K, as llama.cpp's Q4_K_M files have them."""
    weights = np.concatenate([stored_as("Q4_K"), stored_as("Q6_K")])
    found = quantise_blocks(weights, 8, BLOCK)
    assert (found.exact, found.block) == (1.0, 16)
    assert np.abs(found.dequantised() - weights).max() <= 2e-6 * np.abs(weights).max()


@pytest.mark.parametrize(("name", "rounded"), [("Q6_K", False), ("Q8_0", False), ("Q5_1", True)])
def test_a_table_whose_rows_are_looked_up_has_no_minimum(name: str, rounded: bool) -> None:
    found = quantise_blocks(stored_as(name), 8, BLOCK, minima=False)
    assert found.minimum is None and found.rounded is rounded


def test_one_block_off_every_grid_rounds_the_matrix() -> None:
    weights = stored_as("Q6_K")
    weights[-1, -16:] = np.random.default_rng(3).standard_normal(16)
    found = quantise_blocks(weights, 8, BLOCK)
    assert (found.rounded, found.exact) == (True, 0.0)
