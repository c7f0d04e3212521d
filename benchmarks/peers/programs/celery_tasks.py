"""Celery on Valkey, without a result backend, as by default."""

from celery import Celery
from common import URL, main, mark

app = Celery("bench", broker=URL)


@app.task(name="work")
def work() -> None:
    """Do nothing."""
    mark()


if __name__ == "__main__":
    main(work.delay)
