"""`serve` for a script: a server, its page and a worker for the functions of the script, in one call."""

import multiprocessing
import sys
from pathlib import Path
from typing import Any

from zndraw_joblib.cli.display import TyperException, print_error
from zndraw_joblib.cli.server import dev
from zndraw_joblib.jobs.extensions import check_job
from zndraw_joblib.jobs.logs import LogConfig, LogThreshold
from zndraw_joblib.worker.serving import MODULE as WORKER


def serve(
    *jobs: Any,
    host: str = "127.0.0.1",
    port: int = 8000,
    database_url: str | None = None,
    concurrency: int = 1,
    reload: bool = True,
) -> None:
    """Run a server, its page and a worker for these jobs of a script, until Ctrl-C.

    It prints the address of the page and a token, as ``zndraw-joblib serve --dev script.py`` does. The worker
    is a process of its own, which imports the script: there this call does nothing. With `reload`, the
    worker starts anew when a Python file in the folder of the script changes. `database_url` is by default
    that of the settings. Call it on the main thread, at the end of the script. Raises TypeError for what is
    no job, ValueError for a job that no other process can import, and RuntimeError without a script, as in a
    notebook.
    """
    if _is_imported():
        return
    if not jobs:
        raise TypeError("serve() needs a job: pass functions with @job, or classes of jobs")
    places = [_place(job) for job in jobs]
    options = dev.DevOptions(
        target=_target(),
        jobs=places,
        host=host,
        port=port,
        database_url=database_url,
        is_reloaded=reload,
        concurrency=concurrency,
        log=LogConfig(LogThreshold.INFO),
    )
    options.log.apply()
    try:
        dev.run(options)
    except TyperException as error:
        print_error(error.format_message())
        sys.exit(error.exit_code)


def _is_imported() -> bool:
    """Return whether this process is the worker, or a process of its tasks, which imports the script."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return multiprocessing.parent_process() is not None or (spec is not None and spec.name == WORKER)


def _target() -> str:
    """Return the script as a worker loads it: the name of a module, or the path of a file."""
    main = sys.modules["__main__"]
    if (spec := getattr(main, "__spec__", None)) is not None:
        return str(spec.name)
    file = getattr(main, "__file__", None)
    if file is None or not Path(file).is_file():
        raise RuntimeError(
            "serve() starts a process that imports the script, and there is none here. Save the jobs in a "
            "file and run it; in a notebook, run 'zndraw-joblib serve --dev jobs.py' in a terminal"
        )
    return str(Path(file).resolve())


def _place(job: Any) -> str:
    """Return where the worker finds a job: its module, empty for the script, and its name."""
    check_job(job)
    module = "" if job.__module__ == "__main__" else job.__module__
    if "<locals>" in job.__qualname__:
        raise ValueError(f"serve(): the worker cannot import {job.__qualname__}: define it at the top level")
    return f"{module}:{job.__qualname__}"
