"""The standalone server on a real port."""

from collections.abc import AsyncIterator

import pytest

from realtime.sockets import LiveServer, serve
from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import ServerSettings


@pytest.fixture
def settings(sqlite_url: str) -> ServerSettings:
    """Return settings that a test may change; SQLite, because sockets do not depend on the database."""
    return ServerSettings(database_url=sqlite_url, admin_token="admin-token-of-the-tests")


@pytest.fixture
async def server(settings: ServerSettings) -> AsyncIterator[LiveServer]:
    """Serve the standalone app while the test runs."""
    app = create_app(settings)
    assert settings.admin_token is not None
    async with serve(app, app, settings.admin_token.get_secret_value()) as server:
        yield server
