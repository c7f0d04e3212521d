"""The pytest plugin `zndraw_joblib`: a queue on a real SQLite database for each test.

It imports no library of the server before a test uses one of its fixtures.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fastapi import FastAPI

    from zndraw_joblib.testing.queue import AsyncTestQueue, TestQueue


@pytest.fixture(scope="session")
def joblib_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a SQLite file with the queue's tables, which each test copies. Do not write to it."""
    path = tmp_path_factory.mktemp("zndraw-joblib") / "template.db"
    _import("queue").make_database(path)
    return path


@pytest.fixture
def joblib_database_url(joblib_template: Path, tmp_path: Path) -> str:
    """Return the URL of this test's SQLite database, for `create_async_engine`. It has the queue's tables."""
    return f"sqlite+aiosqlite:///{shutil.copy(joblib_template, tmp_path / 'joblib.db')}"


@pytest.fixture
def joblib_app(joblib_database_url: str) -> "Iterator[FastAPI]":
    """Return an app with the queue. Override it to return your own app on `joblib_database_url`."""
    with _import("queue").smallest_app(Path(joblib_database_url.partition("///")[2])) as app:
        yield app


@pytest.fixture
def joblib_queue(joblib_app: "FastAPI") -> "Iterator[TestQueue]":
    """Return the queue of `joblib_app`, for a test that is a plain function."""
    with _closed(_import("queue").TestQueue(joblib_app)) as queue:
        yield queue


@pytest.fixture
def async_joblib_queue(joblib_app: "FastAPI") -> "Iterator[AsyncTestQueue]":
    """Return the queue of `joblib_app`, for a test that is a coroutine."""
    with _closed(_import("queue").AsyncTestQueue(joblib_app)) as queue:
        yield queue


@contextmanager
def _closed(queue: Any) -> Iterator[Any]:
    try:
        yield queue
    finally:
        queue.close()


def _import(name: str) -> Any:
    try:
        return import_module(f"zndraw_joblib.testing.{name}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("zndraw_joblib"):
            raise
        from zndraw_joblib.jobs.failures import missing_extra  # noqa: PLC0415 - it loads pydantic

        needed = missing_extra("A fixture of zndraw_joblib", "server", error)
        pytest.fail(f"{needed}. Without it, zndraw_joblib.testing.run_job tests a job", pytrace=False)
