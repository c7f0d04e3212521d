"""Jobs of a worker: run them with `zndraw-joblib worker rectangles.py`."""

from typing import Any, ClassVar

from pydantic import Field

from zndraw_joblib import Category, Extension, NonRetryable, TaskContext


class Tile(Extension):
    """Cover a rectangle with tiles."""

    category: ClassVar[Category] = Category.ANALYSIS
    width: int = Field(gt=0)
    height: int = Field(gt=0)
    tile: int = Field(default=10, gt=0)

    def run(self, vis: Any, *, task: TaskContext) -> int:
        """Return the number of tiles."""
        if self.width % self.tile or self.height % self.tile:
            raise NonRetryable(f"tiles of {self.tile} do not fit")
        for row in task.track(range(self.height // self.tile), unit="rows"):
            task.log(f"row {row}")
        return (self.width // self.tile) * (self.height // self.tile)
