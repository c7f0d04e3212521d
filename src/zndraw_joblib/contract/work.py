"""What a worker can do: extensions and their categories."""

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import BaseModel


class Category(StrEnum):
    """The categories that a server allows unless it is told others."""

    MODIFIER = "modifiers"
    SELECTION = "selections"
    ANALYSIS = "analysis"


class Extension(BaseModel, ABC):
    """A job: its fields are the payload, its JSON schema is the job's, `run` does the work.

    The name of the class is the job's own name.
    """

    category: ClassVar[Category | str]

    @abstractmethod
    def run(self, vis: Any, **kwargs: Any) -> Any:
        """Do the work. What it returns, if JSON can say it, becomes the task's result (1 MiB at most).

        `vis` is the context that the worker's host makes for each task, else None.
        """
