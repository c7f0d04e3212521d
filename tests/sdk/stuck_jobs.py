"""Jobs whose processes have to be killed, and some that notice their end in time."""

import ctypes
import os
import subprocess
from pathlib import Path
from typing import Any, ClassVar

from zndraw_joblib import Batch, Extension, TaskContext, job


def never_return() -> None:
    """Wait in native code forever, with Python's lock: no thread of this process runs any more."""
    mutex = ctypes.create_string_buffer(64)  # of zeros, as PTHREAD_MUTEX_INITIALIZER
    lock = ctypes.PyDLL(None).pthread_mutex_lock
    lock(mutex)
    lock(mutex)


class Stuck(Extension):
    """Starts a program, and ends as its payload says; in its first run only, if it is told a file."""

    category: ClassVar[str] = "analysis"
    folder: str
    how: str = "native"
    once: bool = False

    def run(self, vis: Any, *, task: TaskContext) -> Any:
        """Return the id of the process once the task is cancelled, or never."""
        folder = Path(self.folder)
        if self.once and (folder / "pids").exists():
            return "well"
        if self.how == "well":
            return os.getpid()
        program = subprocess.Popen(["sleep", "1000"])
        (folder / "pids.new").write_text(f"{os.getpid()} {program.pid}")
        (folder / "pids.new").rename(folder / "pids")
        try:
            if self.how == "native":
                never_return()
            elif self.how == "ignores":
                while True:
                    program.wait()
                    program = subprocess.Popen(["sleep", "1000"])
            task.cancelled.wait(60)
            program.terminate()
            return task.cancelled.is_set()
        finally:
            (folder / "cleaned").write_text(str(task.cancelled.is_set()))


@job(batch=Batch(max=4, wait_seconds=0))
def stuck_together(folders: list[str], tasks: list[TaskContext]) -> list[Any]:
    """Wait until the first task is cancelled, and then in native code."""
    first, *_ = [task for folder, task in zip(folders, tasks, strict=True) if folder.endswith("first")]
    Path(folders[0]).with_name("pids").write_text(str(os.getpid()))
    first.cancelled.wait(60)
    Path(folders[0]).with_name("noticed").write_text(str([task.cancelled.is_set() for task in tasks]))
    never_return()
    return folders
