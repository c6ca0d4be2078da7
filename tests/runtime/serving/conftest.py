"""A bundle that answers at once."""

from collections.abc import Iterator

import pytest

from specruntime.bundle import LoadedBundle
from tests.runtime.scripted_bundle import ScriptedEngine, scripted_bundle
from tests.runtime.scripted_engine import Language


@pytest.fixture
def scripted() -> Iterator[tuple[LoadedBundle, ScriptedEngine]]:
    bundle, engine = scripted_bundle(language=Language(habit=3.0))
    yield bundle, engine
    bundle.close()
