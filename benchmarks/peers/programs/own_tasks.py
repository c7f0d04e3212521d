"""This queue over HTTP, with its SDK."""

from typing import Any, ClassVar

from common import URL, main, mark

from zndraw_joblib import Category, Extension, JobManager, connect


class Work(Extension):
    """Does nothing."""

    category: ClassVar[Category] = Category.MODIFIER

    def run(self, vis: Any, **kwargs: Any) -> None:
        """Count the task."""
        mark()


def _enqueue() -> None:
    with connect(URL, token="token-of-the-benchmark") as api:
        manager = JobManager(api)

        def enqueue_many(count: int) -> None:
            ids = manager.submit_many([Work()] * count, room="bench")
            assert all(isinstance(task_id, str) for task_id in ids)

        main(lambda: manager.submit(Work(), room="bench"), enqueue_many, setup=lambda: manager.register(Work))


if __name__ == "__main__":
    _enqueue()
