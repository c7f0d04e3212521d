"""Jobs for `zndraw-joblib worker examples/jobs.py`."""

import time
from typing import Any, ClassVar

from pydantic import Field

from zndraw_joblib import Category, Extension


class Area(Extension):
    """Compute the area of a rectangle."""

    category: ClassVar[Category] = Category.ANALYSIS
    width: float
    height: float

    def run(self, vis: Any, **kwargs: Any) -> float:
        """Return width times height."""
        return self.width * self.height


class Pause(Extension):
    """Take a while."""

    category: ClassVar[Category] = Category.MODIFIER
    seconds: float = Field(default=1.0, ge=0, le=60)

    def run(self, vis: Any, **kwargs: Any) -> None:
        """Sleep for `seconds`."""
        time.sleep(self.seconds)
