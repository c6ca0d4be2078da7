"""Requests drawn from the served OpenAPI document, and broken ones: every answer is one the document promises."""

from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from tests.runtime.server.conftest import Running
from tests.runtime.server.http import call

load_all_checks()
# A request of the schema may still be too long, or ask for what does not go together: 400.
LEFT_OUT: list[Any] = CHECKS.get_by_names(["positive_data_acceptance"])
POSTS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize")
GETS = ("/v1/models", "/v1/models/{model}", "/health", "/ready", "/metrics")
CASES = [
    *((path, "POST", mode) for path in POSTS for mode in GenerationMode),
    *((path, "GET", GenerationMode.POSITIVE) for path in GETS),
]


@pytest.mark.parametrize(
    ("path", "method", "mode"), CASES, ids=lambda value: str(getattr(value, "value", value))
)
def test_every_answer_is_one_that_the_document_promises(
    tiny_server: Running, path: str, method: str, mode: GenerationMode
) -> None:
    described = schemathesis.openapi.from_url(f"{tiny_server.url}/openapi.json")
    statuses: Counter[int] = Counter()

    @given(case=described[path][method].as_strategy(generation_mode=mode))
    @settings(
        max_examples=15 if method == "POST" else 5, deadline=None, suppress_health_check=list(HealthCheck)
    )
    def check(case: schemathesis.Case[Any]) -> None:
        response = case.call_and_validate(excluded_checks=LEFT_OUT, timeout=60)
        statuses[response.status_code] += 1

    check()
    assert statuses[500] == 0
    if method == "POST":
        assert statuses[200] if mode is GenerationMode.POSITIVE else statuses[422], statuses
    assert call(tiny_server, "GET", "/ready")[0] == 200
    assert tiny_server.scheduler.occupancy().active == 0
