"""docs/architectures.md says what the tests find. SPECEXPORT_WRITE_DOCS=1 writes the tables instead of comparing."""

import pytest

from specexport.context import quiet
from specexport.errors import CheckpointUnsupported
from specexport.export import check_supported
from tests.specexport.export.architecture_tables import exported_row, require_section
from tests.specexport.export.architectures import EXPORTED, REFUSED, Refused
from tests.specexport.export.comparison import compare_chain
from tests.specexport.export.exported import CANONICAL, ONNXRUNTIME, ExportedArchitectures, random_model
from tests.specexport.export.test_parity_with_eager import SHAPES, TOLERANCE

EXPORTED_HEAD = (
    "| architecture | carried into the graph | canonical graph | ONNX Runtime variant | its attention |\n"
    "|---|---|---|---|---|"
)
REFUSED_HEAD = "| architecture | message |\n|---|---|"


def message_of(refused: Refused) -> str:
    with quiet(), pytest.raises(CheckpointUnsupported) as failure:
        check_supported(random_model(refused.model_type, refused.sizes))
    return str(failure.value)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # alone, it traces every architecture
def test_the_page_lists_what_was_exported_and_how(exported: ExportedArchitectures) -> None:
    rows = []
    for architecture in EXPORTED:
        found = exported[architecture.model_type]
        equal = {}
        for variant in (CANONICAL, ONNXRUNTIME):
            graph = found.graph(variant)
            equal[variant] = all(compare_chain(graph, found.references, s).worst <= TOLERANCE for s in SHAPES)
        rows.append(exported_row(architecture.model_type, architecture.features, equal, found.reports))
    require_section("exported", "\n".join([EXPORTED_HEAD, *rows]))


def test_the_page_lists_what_is_refused_and_why() -> None:
    rows = [f"| `{refused.model_type}` | {message_of(refused)} |" for refused in REFUSED]
    require_section("refused", "\n".join([REFUSED_HEAD, *rows]))


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused.model_type)
def test_an_architecture_the_graph_cannot_carry_is_refused_by_reason(refused: Refused) -> None:
    message = message_of(refused)
    assert refused.reason in message
    assert "expected" in message and "\n" not in message
