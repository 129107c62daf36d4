"""Whatever its own description allows, and what it does not, is answered as it says."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

OPERATIONS = [
    ("/v1/completions", "POST"),
    ("/v1/chat/completions", "POST"),
    ("/v1/models/{name}", "GET"),
    ("/kv", "GET"),
]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
#: That wrong requests are refused.
MODES = [
    (GenerationMode.POSITIVE, CHECKS),
    (GenerationMode.NEGATIVE, [*CHECKS, negative_data_rejection]),
]


@pytest.mark.parametrize(("mode", "checks"), MODES, ids=["allowed", "not-allowed"])
def test_no_request_crashes_it(tiny, serving, mode, checks):
    server = serving(tiny(400, worded=True, max_length=40))
    schema = schemathesis.openapi.from_dict(server.http.get("/openapi.json").json())
    statuses = set()
    for path, method in OPERATIONS:
        if mode is GenerationMode.NEGATIVE and path == "/v1/models/{name}":
            continue  # any text may be a name
        operation = schema[path][method]

        @settings(
            max_examples=15, deadline=None, database=None, suppress_health_check=list(HealthCheck)
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def fuzz(case):
            response = case.call(base_url=server.url)
            statuses.add(response.status_code)
            case.validate_response(response, checks=checks)

        fuzz()
    assert server.http.get("/health").status_code == 200
    assert len(statuses) > 1
    server.until_free()


def test_every_path_is_described(tiny, serving):
    server = serving(tiny())
    paths = server.http.get("/openapi.json").json()["paths"]
    described = {(path, method.upper()) for path, methods in paths.items() for method in methods}
    others = {("/v1/models", "GET"), ("/health", "GET"), ("/metrics", "GET"), ("/ui", "GET")}
    assert described == set(OPERATIONS) | others
