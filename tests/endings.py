"""How the code of a job may end, and the error that its task gets."""

import asyncio
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from pydantic import BaseModel, model_serializer


class Unspeakable(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Exits(Exception):
    """An exception whose text ends the program."""

    def __str__(self) -> str:  # noqa: PLE0307 - on purpose
        sys.exit(1)


class ReturnsNone(Exception):
    """An exception whose text is None."""

    def __str__(self) -> str:
        return None  # type: ignore[return-value]  # noqa: PLE0307 - on purpose


class OwnBase(BaseException):
    """An exception that `except Exception` does not catch."""


class ExitsAsJson(BaseModel):
    """A result that ends the program when it is encoded."""

    @model_serializer
    def end(self) -> dict[str, int]:
        """End the program."""
        sys.exit(5)


def raising(error: BaseException) -> Callable[[], Any]:
    """Return a function that raises."""

    def run() -> NoReturn:
        raise error

    return run


def lazily(error: BaseException) -> Callable[[], Iterator[int]]:
    """Return a function that returns a generator that raises after its first item."""

    def run() -> Iterator[int]:
        yield 1
        raise error

    return run


def nested() -> list[Any]:
    """Return a list that contains itself."""
    found: list[Any] = []
    found.append(found)
    return found


ENDINGS: dict[str, tuple[Callable[[], Any], str]] = {
    "error": (raising(ValueError("odd\x00\ud800")), "ValueError: odd\\x00\\ud800"),
    "exit": (raising(SystemExit(3)), "SystemExit: 3"),
    "interrupt": (raising(KeyboardInterrupt()), "KeyboardInterrupt"),
    "generator exit": (raising(GeneratorExit()), "GeneratorExit"),
    "stop iteration": (raising(StopIteration(1)), "StopIteration: 1"),
    "cancelled": (raising(asyncio.CancelledError()), "CancelledError"),
    "own base class": (raising(OwnBase("x")), "OwnBase: x"),
    "group": (raising(BaseExceptionGroup("g", [OwnBase()])), "BaseExceptionGroup: g (1 sub-exception)"),
    "long text": (raising(ValueError("x" * 100_000)), "ValueError: xxx"),
    "text raises": (raising(Unspeakable()), "Unspeakable: (str() of this Unspeakable raised ValueError)"),
    "text exits": (raising(Exits()), "Exits: (str() of this Exits raised SystemExit)"),
    "text is None": (raising(ReturnsNone()), "ReturnsNone: (str() of this ReturnsNone raised TypeError)"),
    "lazy error": (lazily(RuntimeError("late")), "RuntimeError: late"),
    "lazy value error": (lazily(ValueError("late")), "ValueError: late"),
    "lazy exit": (lazily(SystemExit(4)), "SystemExit: 4"),
    "lazy interrupt": (lazily(KeyboardInterrupt()), "KeyboardInterrupt"),
    "lazy generator exit": (lazily(GeneratorExit()), "GeneratorExit"),
    "lazy without text": (lazily(Unspeakable()), "Unspeakable: (str() of this Unspeakable raised"),
    "exit of a serializer": (ExitsAsJson, "The result cannot be sent as JSON: "),
    "endless": (itertools.count, "The result cannot be sent as JSON: result: an iterator may have at most"),
    "nested": (nested, "The result cannot be sent as JSON: "),
    "not JSON": (object, "The result cannot be sent as JSON: "),
}

RAISED_BY_VALIDATORS: dict[str, BaseException] = {
    "error": RuntimeError("broken"),
    "exit": SystemExit(3),
    "interrupt": KeyboardInterrupt(),
    "generator exit": GeneratorExit(),
    "text raises": Unspeakable(),
}
