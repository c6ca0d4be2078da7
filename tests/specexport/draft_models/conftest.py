"""A tiny target, and drafts of random weights for it."""

from pathlib import Path

import pytest
import torch

from specexport.checkpoints.loading import Checkpoint
from specexport.draft_models import DraftTarget, Eagle1Draft, Eagle3Draft, MedusaHeads, draft_target
from specexport.draft_models.random_drafts import random_eagle, random_medusa


@pytest.fixture
def target(tiny: Checkpoint) -> DraftTarget:
    return draft_target(tiny.model, name="tiny", vocab_size=tiny.vocab_size)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty directory for a draft's files."""
    directory = tmp_path / "draft"
    directory.mkdir()
    return directory


@pytest.fixture
def eagle3(target: DraftTarget) -> Eagle3Draft:
    draft = random_eagle("eagle3", target, seed=1, draft_vocab_size=100)
    assert isinstance(draft, Eagle3Draft)
    return draft


@pytest.fixture
def eagle(target: DraftTarget) -> Eagle1Draft:
    draft = random_eagle("eagle", target, seed=1)
    assert isinstance(draft, Eagle1Draft)
    return draft


@pytest.fixture
def heads(target: DraftTarget) -> MedusaHeads:
    return random_medusa(target, seed=1, heads=3, layers=2)


@pytest.fixture(autouse=True)
def _repeatable() -> None:
    torch.manual_seed(0)
