"""Serve from several processes: each is a worker of its own, and one that crashes is replaced."""

import asyncio
import json
import logging
import signal
import sys
from dataclasses import asdict, dataclass, field

from zndraw_joblib.contract.problems import ProblemException
from zndraw_joblib.worker.api import connect
from zndraw_joblib.worker.loading import CannotLoad, load_context, load_extensions
from zndraw_joblib.worker.serving import serve
from zndraw_joblib.worker.supervisor import ChildExit, Next, Parent, Supervisor

_MODULE = "zndraw_joblib.worker.processes"  # each child runs it, as __main__
log = logging.getLogger(_MODULE)

REFUSED = 2


@dataclass(frozen=True, slots=True)
class ProcessConfig:
    """What each process loads and serves, and where; `target` and `context` as in `loading`."""

    target: str
    url: str
    token: str | None = field(repr=False)
    room: str
    context: str | None = None
    concurrency: int = 1
    log_level: str = "WARNING"


def serve_processes(config: ProcessConfig, count: int) -> int:
    """Serve in `count` processes until SIGINT or SIGTERM; return the exit code.

    The first signal lets running tasks end, the second does not. A process that crashes is replaced, see
    `Supervisor`; one whose worker has left, because an operator drained it, is not. When the server or
    `loading` refuses a process, all end, and the exit code is 2. Call it on the main thread.
    """
    command = (sys.executable, "-P", "-m", _MODULE)
    line = json.dumps(asdict(config))
    supervisor = Supervisor(command, line, count, _after, second_signal=signal.SIGTERM)
    refused = asyncio.run(supervisor.run())
    if refused is None:
        return 0
    log.error("%s", refused)
    return REFUSED


def _after(ended: ChildExit) -> Next:
    if ended.answer:
        return Next.ABORT
    return Next.RESTART if ended.code else Next.DONE


def _serve_in_child() -> None:
    parent = Parent()
    config = ProcessConfig(**json.loads(parent.config))
    logging.basicConfig(format="%(asctime)s %(levelname)-7s %(process)d %(name)s: %(message)s")
    logging.captureWarnings(capture=True)
    logging.getLogger("zndraw_joblib").setLevel(config.log_level)
    try:
        extensions = load_extensions(config.target)
        context = load_context(config.context) if config.context else None
        with connect(config.url, config.token, realtime=True) as api:
            serve(api, extensions, room=config.room, context=context, concurrency=config.concurrency)
    except (ProblemException, CannotLoad) as error:
        parent.report(str(error))
        sys.exit(REFUSED)


if __name__ == "__main__":
    _serve_in_child()
