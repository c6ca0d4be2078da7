"""The search for a target's drafting layers: the best predicted among the sets that greedy dropping visits, within its
time.
"""

import pytest
import torch

from specexport.checkpoints.loading import Checkpoint, load_checkpoint
from specexport.tune.layer_search import best_length, search_layers
from specexport.tune.probing import Answered
from tests.scripted_clock import ScriptedClock
from tests.specexport.conftest import random_target


@pytest.mark.parametrize(
    ("agreement", "share", "k", "speedup"), [(0.8, 0.05, 8, 3.09), (0.7, 0.1, 4, 1.98), (0.5, 0.5, 1, 1.0)]
)
def test_the_length_is_that_of_law_4(agreement: float, share: float, k: int, speedup: float) -> None:
    length, speed = best_length(agreement, share, 1.0)
    assert length == k and speed == pytest.approx(speedup, abs=5e-3)
    assert best_length(agreement, share, 1.5)[1] < speedup


@pytest.fixture
def layered(cache: object) -> Checkpoint:
    """Six layers of which the second and the fifth pass on what they read: their outputs are weighted with 0."""
    checkpoint = load_checkpoint(random_target(num_hidden_layers=6), "fp32")
    with torch.no_grad():
        for name, weights in checkpoint.model.named_parameters():
            if any(f"layers.{n}." in name and ("o_proj" in name or "down_proj" in name) for n in (1, 4)):
                weights.zero_()
            elif "o_proj" in name or "down_proj" in name:
                weights.mul_(8)
    return checkpoint


def answered(checkpoint: Checkpoint, length: int = 40) -> Answered:
    """What the model says by itself."""
    ids = [3, 5, 7, 11]
    with torch.no_grad():
        while len(ids) < length:
            ids.append(int(checkpoint.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return Answered(tuple(ids), 4)


def test_layers_that_do_nothing_go_first_and_agreement_is_that_of_the_rest(layered: Checkpoint) -> None:
    before = layered.model(input_ids=torch.tensor([[1, 2, 3]])).logits
    found = search_layers(layered.model, [answered(layered)], minutes=5.0)
    assert not {1, 4} & set(found.layers)
    assert found.layers == (0, 2, 3, 5) or found.speedup > best_length(1.0, 5 / 7, 1.0)[1]
    assert torch.equal(before, layered.model(input_ids=torch.tensor([[1, 2, 3]])).logits), (
        "all layers are back"
    )


def test_it_ends_with_its_time_but_not_before_one_sweep(layered: Checkpoint, ticking: ScriptedClock) -> None:
    ticking.tick = 60.0
    found = search_layers(layered.model, [answered(layered)], minutes=0.5)
    assert len(found.layers) == 5 and found.agreement == 1.0
