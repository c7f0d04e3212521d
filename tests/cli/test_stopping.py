"""Ctrl-C ends a server cleanly, whoever sleeps there."""

import threading
import time

from waiting import wait_until

from cli.program import Program, Serving
from zndraw_joblib.contract.messages import TaskClaimResponse
from zndraw_joblib.worker.client import JobClient
from zndraw_joblib.worker.rest import RestApi


def test_a_server_stops_with_long_polls_open(program: Program) -> None:
    """Within two seconds and without a traceback; the waiter gets its answer: no task."""
    # A worker that sleeps on the server counts as alive, every quarter of the timeout.
    with (
        Serving(program, WORKER_TIMEOUT_SECONDS="0.4") as server,
        server.connect() as connection,
    ):
        remote = RestApi(connection)
        worker = remote.create_worker()
        answers: list[tuple[TaskClaimResponse, int]] = []
        poll = threading.Thread(target=lambda: answers.append(remote.claim(worker.id, wait=30)))
        poll.start()
        wait_until(lambda: JobClient(remote).workers().items[0].last_heartbeat > worker.last_heartbeat)
        began = time.monotonic()
        done = server.stop()
        assert time.monotonic() - began < 2
        poll.join(2)
    assert (done.code, done.out) == (0, "")
    assert [(answer.task, applied) for answer, applied in answers] == [(None, 30)]
