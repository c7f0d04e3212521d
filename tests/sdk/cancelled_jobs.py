"""Coroutines that are cancelled while they run, in threads and in processes."""

import asyncio
import time
from pathlib import Path
from typing import Any, ClassVar

from zndraw_joblib import Extension, TaskContext


class Wait(Extension):
    """Waits on the event loop, and records in `folder` what it gets."""

    category: ClassVar[str] = "analysis"
    folder: str
    how: str = "raises"

    async def run(self, vis: Any, *, task: TaskContext) -> str:
        """Wait until the task is cancelled, and clean up; or block the event loop until there is a file."""
        folder = Path(self.folder)
        (folder / "running").touch()
        if self.how == "blocks":
            while not (folder / "go").exists():
                time.sleep(0.01)  # noqa: ASYNC251 - on purpose
            return "late"
        try:
            await asyncio.sleep(0 if self.how == "ends" else 60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            (folder / "cleaned").write_text(str(task.cancelled.is_set()))
            if self.how == "raises":
                raise
            return "late"
        return "well"
