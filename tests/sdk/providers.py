"""Providers that the tests register."""

import threading
from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import Field

from zndraw_joblib.jobs.extensions import Provider


class Echo(Provider):
    """Returns its parameters, as JSON."""

    category: ClassVar[str] = "echoes"
    word: str = ""
    numbers: list[int] = Field(default_factory=list)
    ratio: float | None = None
    is_loud: bool = False

    def read(self, handler: Any) -> Any:
        """Return the parameters and the handler."""
        return {**self.model_dump(), "handler": handler}


class Call(Provider):
    """Returns what its handler, a function, returns for a word."""

    category: ClassVar[str] = "calls"
    content_type: ClassVar[str] = "application/octet-stream"
    word: str = ""

    def read(self, handler: Callable[[str], Any]) -> Any:
        """Call the handler."""
        return handler(self.word)


class Text(Call):
    """The same, as text."""

    content_type: ClassVar[str] = "text/plain; charset=utf-8"


class Data(Call):
    """The same, as JSON."""

    content_type: ClassVar[str] = "application/json"


class Gate:
    """A handler that blocks each request until the test opens it; it counts the running requests."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self.may_end = threading.Event()
        self.threads: set[str] = set()

    def __call__(self, word: str) -> bytes:
        """Wait, then return the word."""
        self.threads.add(threading.current_thread().name)
        self.entered.release()
        assert self.may_end.wait(40)
        return word.encode()
