"""Every ending of a job's code is reported, and the worker's only thread continues."""

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from endings import ENDINGS, RAISED_BY_VALIDATORS
from pydantic import field_validator
from waiting import wait_until

from sdk.providers import Data
from zndraw_joblib.jobs.extensions import Category, Extension, NonRetryable, Provider
from zndraw_joblib.wire.problems import ProviderFailed
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager

Make = Callable[..., JobManager]


class End(Extension):
    """A job that ends as its payload says."""

    category: ClassVar[Category] = Category.ANALYSIS
    how: str = "well"

    def run(self, vis: Any, **kwargs: Any) -> Any:
        """Return or raise."""
        return "well" if self.how == "well" else ENDINGS[self.how][0]()


class Check(Extension):
    """A job whose validator raises as its payload says."""

    category: ClassVar[Category] = Category.ANALYSIS
    how: str = "well"

    @field_validator("how")
    @classmethod
    def check(cls, how: str) -> str:
        """Raise for any other word than `well`."""
        if how in RAISED_BY_VALIDATORS:
            raise RAISED_BY_VALIDATORS[how]
        return how

    def run(self, vis: Any, **kwargs: Any) -> str:
        """Return the word."""
        return self.how


class Few(Extension):
    """A job that takes few items, which its schema does not say."""

    category: ClassVar[Category] = Category.ANALYSIS
    items: list[int]

    @field_validator("items")
    @classmethod
    def check(cls, items: list[int]) -> list[int]:
        """Raise for more than 9 items."""
        if len(items) > 9:
            raise ValueError("at most 9 items, please")
        return items

    def run(self, vis: Any, **kwargs: Any) -> None:
        """Do nothing."""


class CheckProvider(Provider):
    """A provider with the same validator."""

    category: ClassVar[str] = "checks"
    how: str = "well"
    check = field_validator("how")(Check.check.__func__)  # type: ignore[attr-defined]

    def read(self, handler: Any) -> str:
        """Return the word."""
        return self.how


def run(task: Any) -> Any:
    """Run a task as `serve` does."""
    return task.extension.run(None)


def test_any_ending_of_a_run_is_reported(worker: Make, room: str, subtests: pytest.Subtests) -> None:
    """The task fails with a text, and the next task runs in the same thread."""
    manager = worker(run)
    manager.register(End, room=room)
    for how in ENDINGS:
        with subtests.test(how=how):
            failed = manager.wait_for(manager.submit(End(how=how), room=room), 30)
            assert failed.status == TaskStatus.FAILED
            assert (failed.error or "").startswith(ENDINGS[how][1])
            assert manager.wait_for(manager.submit(End(), room=room), 30).result == "well"


def test_any_error_of_a_validator_is_reported(worker: Make, room: str, subtests: pytest.Subtests) -> None:
    """The task fails without a retry, and the next task runs in the same thread."""
    manager = worker(run)
    manager.register(Check, room=room)
    for how in RAISED_BY_VALIDATORS:
        with subtests.test(how=how):
            failed = manager.wait_for(manager.submit(f"{room}:analysis:Check", {"how": how}), 30)
            assert failed.status == TaskStatus.FAILED
            name = type(RAISED_BY_VALIDATORS[how]).__name__
            assert (failed.error or "").startswith(f"The payload does not fit Check: {name}")
            assert manager.wait_for(manager.submit(Check(), room=room), 30).result == "well"


def test_a_misfit_names_the_field(worker: Make, room: str) -> None:
    """In one line, with the value, shortened."""
    manager = worker(run)
    manager.register(Few, room=room)
    failed = manager.wait_for(manager.submit(f"{room}:analysis:Few", {"items": list(range(1000))}), 30)
    assert failed.error == (
        "The payload does not fit Few: items: at most 9 items, please (it is [0, 1, 2, 3, 4, 5, ...])"
    )


def test_a_lazy_result_may_end_the_retries(worker: Make, room: str) -> None:
    """`NonRetryable` means the same in a generator as in `run`."""

    def give_up() -> Any:
        yield 1
        raise NonRetryable("no use")

    manager = worker(lambda task: give_up())
    manager.register(End, room=room, max_attempts=3, retry_on=["error"])
    failed = manager.wait_for(manager.submit(End(), room=room), 30)
    assert (failed.error, failed.attempt) == ("NonRetryable: no use", 1)


def test_any_ending_of_a_provider_is_reported(worker: Make, room: str, subtests: pytest.Subtests) -> None:
    """The client gets the error, and the next request is served by the same thread.

    A provider may return an endless stream of bytes.
    """
    manager = worker(read_concurrency=1)
    handler = lambda word: "well" if word == "well" else ENDINGS[word][0]()  # noqa: E731
    manager.register_provider(Data, name="one", handler=handler, room=room)
    for how in sorted(ENDINGS.keys() - {"endless"}):
        with subtests.test(how=how):
            with pytest.raises(ProviderFailed):
                manager.read_provider(f"{room}:calls:one", {"word": how}, timeout=20)
            assert manager.read_provider(f"{room}:calls:one", {"word": "well"}, timeout=20).json() == "well"


def test_any_error_of_a_providers_validator_is_reported(
    worker: Make, room: str, subtests: pytest.Subtests
) -> None:
    """The client gets the error, and the next request is served by the same thread."""
    manager = worker(read_concurrency=1)
    manager.register_provider(CheckProvider, name="one", handler=None, room=room)
    for how in RAISED_BY_VALIDATORS:
        with subtests.test(how=how):
            with pytest.raises(ProviderFailed):
                manager.read_provider(f"{room}:checks:one", {"how": how}, timeout=20)
            assert manager.read_provider(f"{room}:checks:one", {"how": "well"}, timeout=20).json() == "well"


class ClosesBadly:
    """An iterator of bytes whose `close` ends the program."""

    def __init__(self) -> None:
        self._pieces = iter([b'"well"'])

    def __iter__(self) -> "ClosesBadly":
        return self

    def __next__(self) -> bytes:
        return next(self._pieces)

    def close(self) -> None:
        """End the program."""
        raise SystemExit(1)


def test_an_error_when_a_stream_is_closed_changes_nothing(worker: Make, room: str) -> None:
    """The result was uploaded; the thread continues."""
    manager = worker(read_concurrency=1)
    manager.register_provider(Data, name="one", handler=lambda word: ClosesBadly(), room=room)
    for word in ("a", "b"):
        assert manager.read_provider(f"{room}:calls:one", {"word": word}, timeout=20).json() == "well"


class ExitingHost:
    """A host whose `get_headers` ends the program now and then."""

    def __init__(self, api: Any) -> None:
        self._api, self.http, self.base_url = api, api.http, api.base_url
        self.exits = 0

    def get_headers(self) -> dict[str, str]:
        """Raise SystemExit as often as the test says."""
        if self.exits:
            self.exits -= 1
            raise SystemExit(1)
        headers: dict[str, str] = self._api.get_headers()
        return headers

    def raise_for_status(self, response: Any) -> None:
        """Raise the problem."""
        self._api.raise_for_status(response)


def test_an_exit_in_the_code_of_a_host_ends_no_thread(worker: Make, room: str, api: Any) -> None:
    """Claims and heartbeats continue."""
    host = ExitingHost(api)
    manager = worker(run, at=host, long_poll=0, polling_interval=0.05, heartbeat_interval=0.05)
    manager.register(End, room=room)
    host.exits = 10
    wait_until(lambda: host.exits == 0)
    assert worker().wait_for(worker().submit(f"{room}:analysis:End"), 40).result == "well"
