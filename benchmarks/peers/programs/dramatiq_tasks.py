"""Dramatiq on Valkey."""

import dramatiq
from common import URL, main, mark
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(url=URL)
dramatiq.set_broker(broker)


@dramatiq.actor
def work() -> None:
    """Do nothing."""
    mark()


if __name__ == "__main__":
    main(work.send)
