"""The host's app on a new database for each test."""

from collections.abc import Callable, Iterator

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import create_engine

from examples.host.app import create_app
from examples.host.models import Base

LogIn = Callable[[str], dict[str, str]]


@pytest.fixture
def joblib_app(joblib_database_url: str) -> FastAPI:
    """Return the app, with its own tables beside the queue's."""
    engine = create_engine(joblib_database_url.replace("+aiosqlite", ""))
    Base.metadata.create_all(engine)
    engine.dispose()
    return create_app(joblib_database_url, secret="a secret of tests, with at least 32 bytes")


@pytest.fixture
def client(joblib_app: FastAPI) -> Iterator[TestClient]:
    """Return a client without a user."""
    with TestClient(joblib_app) as client:
        yield client


@pytest.fixture
def log_in(client: TestClient) -> LogIn:
    """Return a function that signs up a user, the first one as a superuser, and returns its headers."""

    def log_in(name: str) -> dict[str, str]:
        account = {"email": f"{name}@example.com", "password": f"password of {name}"}
        assert client.post("/auth/register", json=account).status_code == 201
        form = {"username": account["email"], "password": account["password"]}
        token = client.post("/auth/login", data=form).json()["access_token"]
        return {"Authorization": f"Bearer {token}"}

    return log_in
