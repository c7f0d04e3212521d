"""The OpenAPI document of the standalone server."""

import json
from typing import Any

from zndraw_joblib.server.host.app import create_app
from zndraw_joblib.server.process.settings import ServerSettings


def document() -> dict[str, Any]:
    """Return the document as a server sends it at ``/openapi.json``."""
    app = create_app(ServerSettings(database_url="sqlite://"))
    found: dict[str, Any] = json.loads(json.dumps(app.openapi()))
    return found


def text() -> str:
    """Return the document in the format of the committed file."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"
