"""Random requests that follow, or just miss, the OpenAPI document: no 5xx, no answer outside it.

The requests are the same in each run. `make fuzz` sends many more, and others each time.
"""

import itertools
import json
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx
import pytest
import schemathesis
from databases import PostgresDatabases
from generate import DOCUMENT
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi import checks
from servers import ServerProcess

from fuzz.rows import ROOM, V1, Rows, Values
from fuzz.schemas import payloads, schemas

MANY = int(os.environ.get("FUZZ_EXAMPLES", "0"))
# No request may wait for long.
SHORT_WAITS = {
    "long_poll_max_wait_seconds": 0.05,
    "provider_long_poll_default_seconds": 0.05,
    "provider_long_poll_max_seconds": 0.05,
}
# A provider that does not answer: the only server errors that a request may cause.
EXPECTED = {f"/v1/problems/{name}" for name in ("provider-not-connected", "provider-timeout")}


def no_server_error(
    context: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case[Any]
) -> None:
    """Accept no 5xx, except that a provider does not answer."""
    is_problem = response.headers.get("content-type") == ["application/problem+json"]
    has_body = case.method.upper() != "HEAD"
    if not (is_problem and has_body and response.json()["type"] in EXPECTED):
        schemathesis.checks.not_a_server_error(context, response, case)


CHECKS = [
    no_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.missing_required_header,
    checks.unsupported_method,
    checks.ignored_auth,
]
# The answer with the overview's events does not end; tests of the overview read it.
schema = schemathesis.openapi.from_dict(json.loads(DOCUMENT.read_text(encoding="utf-8"))).exclude(
    path="/v1/joblib/overview/events"
)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Start a server on a new database."""
    if request.param == "sqlite":
        with ServerProcess(
            f"sqlite:///{tmp_path_factory.mktemp('fuzz') / 'fuzz.db'}", **SHORT_WAITS
        ) as server:
            yield server
        return
    postgres: PostgresDatabases = request.getfixturevalue("postgres")
    name = postgres.take()
    with ServerProcess(postgres.url.format(name), **SHORT_WAITS) as server:
        yield server
    postgres.give_back(name)


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    """Return a superuser's client."""
    headers = {"Authorization": f"Bearer {server.token}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=120) as client:
        yield client


@pytest.fixture(scope="module")
def rows(client: httpx.Client) -> Rows:
    """Return the rows that requests may address."""
    return Rows(client)


# Threads of servers that other tests have started in this process use `random` too.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
@schema.given(data=st.data())
@schema.parametrize()
@settings(
    max_examples=MANY or 5,
    derandomize=not MANY,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # Schemathesis tries the document's examples only in tests without `given`.
    phases=set(Phase) - {Phase.explicit},
)
def test_each_answer_follows_the_document(
    case: schemathesis.Case[Any], data: st.DataObject, rows: Rows, server: ServerProcess
) -> None:
    """Half of the requests address rows that exist."""
    values = rows.values_for(case.operation.label)
    if data.draw(st.booleans(), "address existing rows"):
        for part in (case.path_parameters, case.query, case.headers, case.body):
            address(part, values, data)
    case.call_and_validate(
        base_url=server.url, headers={"Authorization": f"Bearer {server.token}"}, checks=CHECKS, timeout=120
    )


_NUMBERS = itertools.count()


@given(schema=schemas, inputs=st.lists(payloads, min_size=1, max_size=2))
@settings(
    max_examples=MANY or 5,
    derandomize=not MANY,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
def test_no_schema_stops_the_server(
    schema: dict[str, Any], inputs: list[dict[str, Any]], client: httpx.Client
) -> None:
    """A job with it, and its tasks, are accepted or refused with 4xx; then the server answers."""
    job = {"category": "modifiers", "name": f"Schema{next(_NUMBERS)}", "schema": schema}
    response = client.put(f"{V1}/rooms/{ROOM}/jobs", json=job)
    assert response.status_code in {201, 413, 422}, response.text
    if response.status_code == 201:
        for payload in inputs:
            url = f"{V1}/rooms/{ROOM}/tasks/{response.json()['full_name']}"
            answer = client.post(url, json={"payload": payload})
            assert answer.status_code in {202, 413, 422}, answer.text
    assert client.get(f"{V1}/me").is_success


def address(part: Any, values: Values, data: st.DataObject) -> None:
    """Replace the ids and names in a part of a request by those of existing rows."""
    if isinstance(part, list):
        for each in part:
            address(each, values, data)
    elif hasattr(part, "items"):
        for name, value in list(part.items()):
            if choices := values.get(name):
                part[name] = choices[data.draw(st.integers(0, len(choices) - 1), name)]
            elif isinstance(value, dict | list):
                address(value, values, data)


def answer(status: int = 200, kind: str = "application/json", body: Any = None) -> httpx.Response:
    """Return an answer to a request for the status of the sweeper."""
    request = httpx.Request("GET", "http://test/v1/joblib/admin/sweeper")
    headers = {"content-type": kind} if kind else {}
    response = httpx.Response(status, headers=headers, content=json.dumps(body), request=request)
    response.elapsed = timedelta(0)
    return response


def test_a_wrong_answer_is_reported(subtests: pytest.Subtests) -> None:
    """A server error, and each kind of answer that the document does not have, fails the test."""
    for response, failure in [
        (
            answer(500, "application/problem+json", {"type": "/v1/problems/internal-server-error"}),
            "Server error",
        ),
        (answer(204), "Undocumented status code"),
        (answer(200, "text/html", "<p>"), "Undocumented Content-Type"),
        (answer(200, ""), "Missing Content-Type header"),
        (answer(200, body={"mode": "enforce"}), "Response violates schema"),
    ]:
        with subtests.test(response=response, failure=failure):
            case = schema["/v1/joblib/admin/sweeper"]["GET"].Case()
            with pytest.raises(FailureGroup) as raised:
                case.validate_response(response, checks=CHECKS[:5])
            assert failure in str(raised.value.exceptions)
