"""Packing: layout 1 holds what was put in, read back by the documentation; fp16 where it is the checkpoint's."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specexport.passes.packed_weights import TILE, pack_blocks, pack_channels, pack_numbers
from specexport.passes.weight_blocks import BlockWeights, quantise_blocks, quantise_channels
from tests.specexport.passes.test_weight_blocks import stored_as
from tests.specexport.passes.window_arithmetic import Unpacked, multiply, unpack

Random = np.random.Generator


def random_blocks(
    random: Random, outputs: int, bits: int, block: int, count: int, zeros: bool, minimum: bool
) -> BlockWeights:
    def each(kind: Any) -> NDArray[Any]:
        return random.standard_normal((outputs, count)).astype(kind).astype(np.float32)

    return BlockWeights(
        bits,
        random.integers(0, 1 << bits, (outputs, count, block), np.uint8),
        np.abs(each(np.float32)) + np.float32(0.1),
        random.integers(0, 256, (outputs, count)).astype(np.uint8) if zeros else None,
        each(np.float32) if minimum else None,
        1.0,
    )


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("outputs", [2, 16, 40, 50])
@pytest.mark.parametrize(
    ("bits", "zeros", "minimum"),
    [
        (8, False, False),
        (8, True, False),
        (8, False, True),
        (8, True, True),
        (4, False, True),
        (4, False, False),
    ],
)
@pytest.mark.parametrize("block", [16, 32, 64, 128])
def test_every_level_is_where_the_layout_says(
    block: int, bits: int, zeros: bool, minimum: bool, outputs: int, gated: bool
) -> None:
    blocks = random_blocks(np.random.default_rng(block + outputs), outputs, bits, block, 3, zeros, minimum)
    packed = pack_blocks(blocks, 3 * block - 5, gated=gated)
    found = unpack(packed, gated=gated)
    assert isinstance(found, Unpacked)
    np.testing.assert_array_equal(found.levels, blocks.values)
    np.testing.assert_array_equal(found.scales, blocks.scales)
    np.testing.assert_allclose(found.weights(), blocks.dequantised(), rtol=1e-4, atol=1e-4)
    record = packed.content.nbytes // (3 * (-(-outputs // TILE)))
    assert record % 32 == 0


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("outputs", "size"), [(6, 8), (32, 33), (50, 64)])
@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
def test_numbers_take_the_smallest_format_that_holds_them(
    name: str, outputs: int, size: int, gated: bool
) -> None:
    weights = np.random.default_rng(0).standard_normal((outputs, size)).astype(np.float32)
    if name != "fp32":
        weights = (weights.view(np.uint32) & (0xFFFFE000 if name == "fp16" else 0xFFFF0000)).view(np.float32)
    packed = pack_numbers(weights, gated=gated)
    assert packed.format == name
    np.testing.assert_array_equal(unpack(packed, gated=gated), weights)


@pytest.mark.parametrize(("outputs", "size"), [(6, 8), (48, 70)])
def test_one_scale_an_output(outputs: int, size: int) -> None:
    weights = np.random.default_rng(0).standard_normal((outputs, size)).astype(np.float32)
    values, scales = quantise_channels(weights)
    packed = pack_channels(values, scales)
    found = unpack(packed, channels=True)
    assert isinstance(found, Unpacked)
    np.testing.assert_array_equal(found.weights()[:, :size], values * scales[:, None])
    x = np.random.default_rng(1).standard_normal((3, size)).astype(np.float32)
    np.testing.assert_allclose(multiply(x, packed, "rows"), x @ weights.T, atol=0.05 * np.sqrt(size))


@pytest.mark.parametrize(("name", "bits"), [("Q4_1", 4), ("Q4_0", 4), ("Q8_0", 8)])
def test_scales_of_the_checkpoint_stay_its_own_numbers(name: str, bits: int) -> None:
    """GGUF holds scales and minima in fp16; what they give is the checkpoint's weight but for the last bit."""
    weights = stored_as(name)
    packed = pack_blocks(quantise_blocks(weights, bits, 32), weights.shape[1])
    assert packed.scale_type == "fp16"
    found = unpack(packed)
    assert isinstance(found, Unpacked)
    np.testing.assert_allclose(found.weights(), weights, rtol=0, atol=2e-7 * np.abs(weights).max())


def test_scales_that_fp16_would_round_stay_fp32() -> None:
    weights = np.random.default_rng(2).standard_normal((32, 64)).astype(np.float32)
    for bits in (4, 8):
        assert pack_blocks(quantise_blocks(weights, bits, 32), 64).scale_type == "fp32"


@pytest.mark.parametrize("rows", ["blocks", "fine"])
@pytest.mark.parametrize("bits", [4, 8])
def test_the_reference_multiplies_what_the_weights_stand_for(bits: int, rows: str) -> None:
    random = np.random.default_rng(3)
    weights = stored_as("Q4_1")[:40]
    x = random.standard_normal((5, weights.shape[1])).astype(np.float32)
    packed = pack_blocks(quantise_blocks(weights, bits, 32), weights.shape[1])
    error = np.abs(multiply(x, packed, rows) - x @ weights.T).max()
    assert error < (1e-3 if rows == "fine" else 0.1) * np.abs(x @ weights.T).max()
