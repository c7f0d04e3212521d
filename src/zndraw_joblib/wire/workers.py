"""What a worker reports about itself."""

import os
import socket
from importlib.metadata import version
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field

MAX_WORKER_NAME = 128
MAX_HOST = 255


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("it may have printable characters only")
    return text


_Printable = AfterValidator(_printable)


class WorkerInfo(BaseModel):
    """What the process of a worker says about itself; all fields are optional.

    `name` is for people, by default the name of the host. `version` is that of its package, `slots` how many
    tasks it runs at once.
    """

    name: Annotated[str, _Printable, Field(min_length=1, max_length=MAX_WORKER_NAME)] | None = None
    host: Annotated[str, _Printable, Field(min_length=1, max_length=MAX_HOST)] | None = None
    pid: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    version: Annotated[str, _Printable, Field(min_length=1, max_length=64)] | None = None
    slots: Annotated[int, Field(ge=1, le=1_000_000)] | None = None


def this_process(name: str | None = None, slots: int | None = None) -> WorkerInfo:
    """Return what this process says about itself; `name` is by default that of the host.

    Raises ValueError for an invalid name.
    """
    host = "".join(letter for letter in socket.gethostname() if letter.isprintable())[:MAX_HOST] or None
    return WorkerInfo(
        name=host and host[:MAX_WORKER_NAME] if name is None else name,
        host=host,
        pid=os.getpid(),
        version=version("zndraw-joblib"),
        slots=slots,
    )
