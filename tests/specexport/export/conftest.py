"""One cache of traced graphs for all tests of the export and of its passes."""

import pytest

from tests.specexport.export.exported import ExportedArchitectures


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> ExportedArchitectures:
    return ExportedArchitectures(tmp_path_factory.mktemp("exported"))
