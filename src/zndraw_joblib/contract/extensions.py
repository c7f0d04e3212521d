"""What a worker can do: extensions, which do work, and providers, which answer reads."""

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import BaseModel, model_validator


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


class Provider(BaseModel, ABC):
    """A kind of read: its fields are the parameters, its JSON schema is the provider's, `read` gives data.

    An instance is one read. Parameters come from a query: they are texts until pydantic makes of them what
    the fields say. One that may be repeated is a list.
    """

    category: ClassVar[str]
    content_type: ClassVar[str] = "application/json"

    @abstractmethod
    def read(self, handler: Any) -> Any:
        """Return the data: bytes, or for ``application/json`` what JSON can say, for ``text/…`` a text.

        `handler` is what was given at the registration: an open file system, a database, a universe of atoms.
        What is raised reaches whoever reads.
        """

    @model_validator(mode="before")
    @classmethod
    def _take_single_for_list(cls, params: Any) -> Any:
        """Take a parameter that was given once for a list of one, where the field is a list."""
        if not isinstance(params, dict):
            return params
        fields = cls.model_json_schema().get("properties", {})
        lists = {name for name, field in fields.items() if field.get("type") == "array"}
        return {
            name: [value] if name in lists and isinstance(value, str) else value
            for name, value in params.items()
        }


class NonRetryable(Exception):
    """A final failure: a job raises it, and the task is not retried, whatever the job's policy is."""


GiveUp = NonRetryable
