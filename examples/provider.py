"""Share a folder and the first lines of its text files: `python examples/provider.py FOLDER ROOM`.

ZNDRAW_JOBLIB_URL and ZNDRAW_JOBLIB_TOKEN name the server and the token. Clients send requests with
`JobManager(connect(url, token)).read_provider("ROOM:heads:texts", {"path": "a.txt", "lines": 3})`, or over
HTTP: `GET /v1/joblib/rooms/ROOM/providers/ROOM:heads:texts?path=a.txt&lines=3`.
"""

import os
import sys
from collections.abc import Iterator
from itertools import islice
from typing import ClassVar

from pydantic import Field

from zndraw_joblib import Folder, JobManager, Provider, connect, share_folder


class Head(Provider):
    """The first lines of a text file. The fields are the parameters, validated before `read` runs."""

    category: ClassVar[str] = "heads"
    content_type: ClassVar[str] = "text/plain; charset=utf-8"
    path: str
    lines: int = Field(default=10, ge=0, le=1000)

    def read(self, handler: Folder) -> Iterator[bytes]:
        """Return the lines one by one; the SDK sends them as they come."""
        content = b"".join(handler.blocks(self.path, length=1_000_000))
        return islice(iter(content.splitlines(keepends=True)), self.lines)


def main(place: str, room: str) -> None:
    """Answer provider requests until Ctrl-C."""
    url = os.environ.get("ZNDRAW_JOBLIB_URL", "http://127.0.0.1:8000")
    folder = Folder(place)
    with (
        connect(url, os.environ.get("ZNDRAW_JOBLIB_TOKEN"), realtime=True) as api,
        JobManager(api) as manager,
    ):

        def register() -> None:
            manager.register_provider(Head, name="texts", handler=folder, room=room)
            share_folder(manager, folder, name="folder", room=room)

        manager.wait(register)


if __name__ == "__main__":
    main(*sys.argv[1:3])
