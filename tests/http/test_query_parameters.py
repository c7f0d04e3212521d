"""A query parameter that nothing reads is refused, because a misspelt filter would list everything."""

from typing import Annotated

import httpx
from fastapi import Depends, FastAPI, Query, Request
from fastapi.security import APIKeyQuery, OAuth2PasswordBearer
from pydantic import BaseModel
from rest import UNKNOWN_ID, V1, AsUser, expect_problem
from test_http_identity import operations

from zndraw_joblib.server.http import endpoints as all_endpoints
from zndraw_joblib.server.http.requests import query_names

# All parameters of its query are the provider's.
FREE = f"{V1}/rooms/lab/providers/@global:modifiers:Rotate"


async def test_no_operation_ignores_a_parameter(
    client: httpx.AsyncClient, app: FastAPI, as_user: AsUser
) -> None:
    """The problem names it, and what may be meant. Only identified callers learn this."""
    anonymous = await as_user()
    # A stream is looked up first, because the room of a task or a group is what its caller may read.
    unseen = {("GET", FREE), *(("GET", f"{V1}/{part}/{UNKNOWN_ID}/events") for part in ("tasks", "groups"))}
    requests = [request for request in operations(app) if request not in unseen]
    for method, url in requests:
        response = await client.request(method, url, params={"statsu": "failed"}, json={})
        if method == "HEAD":
            assert response.status_code == 422, url
            continue
        (error,) = expect_problem(response, 422, "invalid-request")["errors"]
        assert error["loc"] == ["query", "statsu"], (method, url)
        expect_problem(await anonymous.request(method, url, params={"x": ""}), 401, "unauthorized")
    many = {"statsu": "failed", **{f"x{number}": "" for number in range(1_000)}, "a" * 1_000: ""}
    problem = expect_problem(await client.get(f"{V1}/tasks", params=many), 422, "invalid-request")
    assert problem["detail"] == (
        "query.statsu: the operation takes no such parameter (did you mean 'status'?)"
    )
    assert len(problem["errors"]) == 100


async def test_the_document_has_all_parameters(app: FastAPI) -> None:
    """What an operation takes is what the OpenAPI document says, so that no generated client is refused."""
    named = {(row.operation.method, V1 + row.path): row.query_names for row in all_endpoints}
    for path, methods in app.openapi()["paths"].items():
        for method, operation in methods.items():
            if path.startswith(V1):
                declared = [each["name"] for each in operation.get("parameters", []) if each["in"] == "query"]
                assert sorted(declared) == named[method.upper(), path.replace("{name}", "{name:path}")], path


def test_parameters_of_dependencies_are_known() -> None:
    """At any depth, by their aliases, of models and of FastAPI's schemes; unknown with the whole request."""

    class Filter(BaseModel):
        colour: str = ""

    def token(token: str = "") -> str:
        return token

    def user(
        token: Annotated[str, Depends(token)],
        key: Annotated[str, Depends(APIKeyQuery(name="api_key"))],
        bearer: Annotated[str, Depends(OAuth2PasswordBearer("login"))],
        filter_: Annotated[Filter, Query()],
        lang: Annotated[str, Query(alias="lang")],
    ) -> None: ...

    def whole(request: Request) -> None: ...

    def below(user: Annotated[None, Depends(user)], whole: Annotated[None, Depends(whole)]) -> None: ...

    names = {"token", "api_key", "colour", "lang"}
    assert query_names(user, {}) == names
    assert query_names(below, {}) is None
    assert query_names(below, {whole: lambda page="": None}) == names | {"page"}
