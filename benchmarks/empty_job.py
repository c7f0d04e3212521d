"""A job that does nothing, for `zndraw-joblib worker`."""

from typing import Any, ClassVar

from zndraw_joblib import Category, Extension


class Work(Extension):
    """Return at once."""

    category: ClassVar[Category] = Category.MODIFIER

    def run(self, vis: Any, **kwargs: Any) -> None:
        """Do nothing."""
