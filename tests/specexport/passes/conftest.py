"""One cache of traced graphs for all tests of the export and of its passes."""

import pytest

from tests.specexport.export.exported import ExportedArchitectures, exports_under


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> ExportedArchitectures:
    return exports_under(tmp_path_factory.getbasetemp())
