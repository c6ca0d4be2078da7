"""Long-rope factors follow the capacity, are stated, and do not move with the window."""

import numpy as np
import pytest

from specexport.errors import CheckpointUnsupported
from specexport.export import freeze_rope
from tests.specexport.export.architectures import EXPORTED
from tests.specexport.export.comparison import CAPACITY, random_ids, run_eager
from tests.specexport.export.exported import ExportedArchitectures, random_model

SIZES = next(a.sizes for a in EXPORTED if a.model_type == "phi3")
ORIGINAL_CONTEXT = SIZES["original_max_position_embeddings"]


def test_the_bundle_says_which_factors_were_chosen(exported: ExportedArchitectures) -> None:
    assert CAPACITY > ORIGINAL_CONTEXT
    assert exported["phi3"].rope == (
        f"longrope: long factors (capacity {CAPACITY}, original context {ORIGINAL_CONTEXT})"
    )


@pytest.mark.parametrize("capacity", [ORIGINAL_CONTEXT, ORIGINAL_CONTEXT + 1])
def test_frozen_factors_are_those_pytorch_uses_at_the_capacity(capacity: int) -> None:
    ids = random_ids(3, capacity)
    free, frozen = random_model("phi3", SIZES), random_model("phi3", SIZES)
    freeze_rope(frozen, capacity)
    np.testing.assert_array_equal(run_eager(frozen, ids).logits, run_eager(free, ids).logits)


def test_long_factors_hold_for_short_sequences_too() -> None:
    """Where free PyTorch would switch back: the control that freezing does something."""
    ids = random_ids(3, 8)
    free, frozen = random_model("phi3", SIZES), random_model("phi3", SIZES)
    freeze_rope(frozen, CAPACITY)
    assert np.abs(run_eager(frozen, ids).logits - run_eager(free, ids).logits).max() > 1e-2


def test_a_longer_sequence_does_not_move_frozen_short_factors() -> None:
    """Padding of a window may reach past the original context; rows before it must not notice."""
    frozen = random_model("phi3", SIZES)
    freeze_rope(frozen, ORIGINAL_CONTEXT)
    ids = random_ids(3, ORIGINAL_CONTEXT + 8)
    np.testing.assert_allclose(
        run_eager(frozen, ids).logits[:8], run_eager(frozen, ids[:8]).logits, rtol=1e-4, atol=1e-4
    )


def test_dynamic_scaling_is_refused() -> None:
    scaling = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    llama = next(a for a in EXPORTED if a.model_type == "llama")
    model = random_model("llama", {**llama.sizes, "rope_parameters": scaling})
    with pytest.raises(CheckpointUnsupported, match=r"dynamic.*changes its factors with the sequence length"):
        freeze_rope(model, CAPACITY)
