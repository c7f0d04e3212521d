"""Handles, jobs and bars in the kernel of a notebook."""

from collections.abc import Callable
from typing import Any

import nbformat
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook
from sdk.live import TOKEN, LiveServer

from client.jobs import Area
from zndraw_joblib.worker.manager import JobManager


class SocketKernelManager(AsyncKernelManager):
    """Starts kernels on Unix sockets: a port may be taken before the kernel listens on it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(transport="ipc", **options)


CELLS = """
from zndraw_joblib import Queue, AsyncQueue
queue = Queue({url!r}, {token!r}, room={room!r})
task = queue.submit("Area", dict(width=6))
task.result(60, progress=True)
---
task
---
queue.jobs()
---
async with AsyncQueue({url!r}, {token!r}, room={room!r}) as other:
    found = await other.gather(await other.submit("Area"), progress=True)
found
"""


async def test_a_notebook_shows_handles_jobs_and_progress(
    server: LiveServer, worker: Callable[..., JobManager], room: str
) -> None:
    """A bar of HTML is replaced while the cell waits; handles and jobs are tables."""
    worker().register(Area, room=room)
    text = CELLS.format(url=server.url, token=TOKEN, room=room)
    notebook = new_notebook(cells=[new_code_cell(part) for part in text.split("---\n")])
    options = {"kernel_manager_class": SocketKernelManager, "kernel_name": "python3"}
    await NotebookClient(notebook, timeout=120, iopub_timeout=60, **options).async_execute()
    waited, shown, jobs, gathered = [nbformat.writes(new_notebook(cells=[cell])) for cell in notebook.cells]
    assert "<progress " in waited
    assert "completed: &lt;b&gt;multiplying&lt;/b&gt;" in waited
    assert '"6.0"' in waited
    assert f"<th>job</th><td>{room}:analysis:Area</td>" in shown
    assert f"<td>{room}:analysis:Area</td>" in jobs
    assert "1/1 tasks" in gathered
    assert '"[1]"' in gathered
