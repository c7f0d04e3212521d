"""The app of each test, on a database of its own."""

from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from shop import create_app


@pytest.fixture
def joblib_app(joblib_database_url: str) -> FastAPI:
    """Return the app that the queue's fixtures use."""
    return create_app(joblib_database_url)


@pytest.fixture
def client(joblib_app: FastAPI) -> Iterator[TestClient]:
    """Return a client of the app, whose lifespan runs."""
    with TestClient(joblib_app) as client:
        yield client
