"""The command line with PostgreSQL and Valkey, as in a deployment."""

from pathlib import Path

import pytest
from cli.program import Program

TOKEN = "a-token-of-the-deployment"


@pytest.fixture
def program(tmp_path: Path, empty_postgres_url: str, valkey_url: str) -> Program:
    """Return the command line with the environment of a deployment and an upgraded schema."""
    program = Program(
        tmp_path,
        DATABASE_URL=empty_postgres_url,
        REDIS_URL=valkey_url,
        SOCKETIO_TRANSPORTS="websocket",
        ADMIN_TOKEN=TOKEN,
        TOKEN=TOKEN,
    )
    program.ok("db", "upgrade")
    return program
