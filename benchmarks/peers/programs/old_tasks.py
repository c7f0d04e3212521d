"""The client and worker of version 0.1.7, on a server of this version."""

import sys
import threading
from typing import Any, ClassVar

import httpx
from common import URL, main, mark

from zndraw_joblib import Category, Extension, JobManager


class Work(Extension):
    """Does nothing."""

    category: ClassVar[Category] = Category.MODIFIER

    def run(self, vis: Any, **kwargs: Any) -> None:
        """Count the task."""
        mark()


class Api:
    """The documented `ApiManager`."""

    http = httpx.Client(trust_env=False, timeout=30)
    base_url = URL

    def get_headers(self) -> dict[str, str]:
        """Return the headers of identity."""
        return {"Authorization": "Bearer token-of-the-benchmark"}

    def raise_for_status(self, response: httpx.Response) -> None:
        """Raise for an error."""
        response.raise_for_status()


def _work() -> None:
    with JobManager(Api(), execute=lambda task: task.extension.run(None)) as manager:
        manager.register(Work)
        threading.Event().wait()


if __name__ == "__main__":
    if sys.argv[1] == "work":
        _work()
    manager = JobManager(Api())
    main(lambda: manager.submit(Work(), room="bench"), setup=lambda: manager.register(Work))
