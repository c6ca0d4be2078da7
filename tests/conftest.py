"""What every test shares: one thread per library, no network, repeatable hypothesis runs, one tiny bundle."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

# Before numpy, torch and onnxruntime are imported: tests are many and small, threads only get in each other's way.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from hypothesis import HealthCheck, settings

from specruntime import clock
from tests.hastened_builds import hasten_builds
from tests.made_once import made_once
from tests.scripted_clock import CLOCK, TICK, ScriptedClock

REPOSITORY = Path(__file__).resolve().parent.parent
RECIPES = REPOSITORY / "recipes"

# `ci` draws the same examples on every run; `explore` (HYPOTHESIS_PROFILE=explore) looks for new ones.
settings.register_profile(
    "ci", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


# Directories whose tests are about this machine; all others are given the time.
MEASURING = ("latency", "gpu")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the fixtures of a test, those it shares with others included."""
    part = item.path.relative_to(REPOSITORY / "tests").parts[0]
    clock.now = time.perf_counter if part in MEASURING else CLOCK
    if part not in MEASURING:
        hasten_builds()


@pytest.fixture
def ticking() -> Iterator[ScriptedClock]:
    """The clock, of which a test may change the `tick`."""
    yield CLOCK
    CLOCK.tick = TICK


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for what all workers of this test run share."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"


@pytest.fixture(scope="session")
def tiny_bundle(run_directory: Path) -> Path:
    """The bundle of recipes/tiny-random.yaml, built once by the command a user types. Read it, never write it."""

    def build(bundle: Path) -> None:
        specexport = str(Path(sys.executable).with_name("specexport"))
        command = [specexport, "build", str(RECIPES / "tiny-random.yaml"), "-o", str(bundle)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"

    return made_once(run_directory / "tiny-random.bundle", build)
