"""One cache of traced graphs for all tests of the export and of its passes."""

from pathlib import Path

import pytest

from tests.specexport.export.exported import ExportedArchitectures, exports_under


@pytest.fixture(scope="session")
def exported(run_directory: Path) -> ExportedArchitectures:
    return exports_under(run_directory)
