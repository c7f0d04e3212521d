"""The OpenAPI document of a host: its own operations and schemas stay beside those of the queue."""

from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from zndraw_joblib import Identity, JobLib

OPERATIONS = "/host/tasks", "/host/problems"


class Problem(BaseModel):
    """A schema of the host with the name of one of the queue's."""

    riddle: str


async def current_user() -> Identity:
    """Return the only user."""
    return Identity("ada", is_superuser=False)


def host() -> FastAPI:
    """Return an app with operations that have the same ids, tags and schemas as the queue's."""
    app, router = (
        FastAPI(title="Host", openapi_tags=[{"name": "tasks", "description": "Chores"}]),
        APIRouter(),
    )

    @router.get(OPERATIONS[0], operation_id="submitTask", tags=["tasks"])
    async def submit_task() -> list[str]:
        return []

    @router.get(OPERATIONS[1], operation_id="explainProblem", tags=["problems"])
    async def explain_problem() -> Problem:
        return Problem(riddle="")

    app.include_router(router)
    return app


@pytest.fixture
async def documents(sqlite_url: str) -> Any:
    """Return the documents of the host alone, and with the queue."""
    engine = create_async_engine(sqlite_url.replace("sqlite:", "sqlite+aiosqlite:"))
    app = host()
    JobLib(session_maker=async_sessionmaker(engine), identity=current_user).mount(app)
    yield host().openapi(), app.openapi()
    await engine.dispose()


def test_the_operations_of_the_host_stay(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """Ids, tags and information are the host's; those of the queue begin with its name."""
    alone, mounted = documents
    assert mounted["info"] == alone["info"]
    assert mounted["tags"] == alone["tags"]
    for path in OPERATIONS:
        for key in ("operationId", "tags", "summary"):
            assert mounted["paths"][path]["get"][key] == alone["paths"][path]["get"][key]
    added = [path for path in mounted["paths"] if path not in alone["paths"]]
    ids = [one["operationId"] for path in added for one in mounted["paths"][path].values()]
    assert {"joblibSubmitTask", "joblibExplainProblem", "joblibListTasks"} <= set(ids)
    assert all(each.startswith("joblib") for each in ids)
    assert len(set(ids)) == len(ids)
    tags = {tag for path in added for one in mounted["paths"][path].values() for tag in one["tags"]}
    assert all(tag.startswith("joblib ") for tag in tags)


def test_references_lead_to_the_right_schema(documents: tuple[dict[str, Any], dict[str, Any]]) -> None:
    """FastAPI renames both schemas if two have one name; each reference follows."""
    _, mounted = documents
    schemas = mounted["components"]["schemas"]
    of_host = mounted["paths"][OPERATIONS[1]]["get"]["responses"]["200"]["content"]["application/json"]
    assert "riddle" in schemas[of_host["schema"]["$ref"].rpartition("/")[2]]["properties"]
    for path, methods in mounted["paths"].items():
        for operation in methods.values():
            for response in operation["responses"].values():
                if content := response.get("content", {}).get("application/problem+json"):
                    name = content["schema"]["$ref"].rpartition("/")[2]
                    assert schemas[name]["required"] == ["type", "title", "status"], path


async def test_a_host_may_leave_operations_out_of_its_document(sqlite_url: str) -> None:
    """Its own function for the document comes first; the queue adds examples to what it returns."""
    engine = create_async_engine(sqlite_url.replace("sqlite:", "sqlite+aiosqlite:"))
    app = host()
    build = app.openapi

    def of_front_ends() -> dict[str, Any]:
        document = build()
        wanted = "/v1/joblib/tasks/{task_id}"
        return document | {"paths": {wanted: {"summary": "A task", **document["paths"][wanted]}}}

    app.openapi = of_front_ends  # type: ignore[method-assign]
    JobLib(session_maker=async_sessionmaker(engine), identity=current_user).mount(app)
    [operations] = app.openapi()["paths"].values()
    answer = operations["get"]["responses"]["200"]["content"]["application/json"]
    assert answer["example"]["worker_id"]
    assert operations["patch"]["responses"]["409"]["content"]["application/problem+json"]["schema"]["$ref"]
    await engine.dispose()
