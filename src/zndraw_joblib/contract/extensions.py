"""The base classes of a worker's code: extensions, which are jobs, and providers, which answer requests."""

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import Any, ClassVar

from pydantic import BaseModel, model_validator


class Category(StrEnum):
    """The categories that a server allows by default (setting `allowed_categories`)."""

    MODIFIER = "modifiers"
    SELECTION = "selections"
    ANALYSIS = "analysis"


class Extension(BaseModel, ABC):
    """A job. Its fields are the payload, and its name is the last part of the job's full name.

    A class attribute ``policy: ClassVar[JobPolicy]`` sets fields of the job's policy.
    """

    category: ClassVar[Category | str]

    @abstractmethod
    def run(self, vis: Any, **kwargs: Any) -> Any:
        """Do the work and return the task's result: JSON values, arrays, atoms, images, bytes or files.

        `vis` is the context that the worker's host creates for each task, or None. A `run` with an argument
        `task` gets the `TaskContext`, to report progress and to log; `current_task` returns it anywhere.
        """


class Provider(BaseModel, ABC):
    """A remote data source. Its fields are the parameters of a request; an instance is one request.

    The parameters come from a query as strings, which pydantic converts to the types of the fields. The field
    of a parameter that may be repeated is a list.
    """

    category: ClassVar[str]
    content_type: ClassVar[str] = "application/json"

    @abstractmethod
    def read(self, handler: Any) -> Any:
        """Return the result: bytes, for ``application/json`` a JSON value, or for ``text/…`` a string.

        `handler` is the object given at the registration: an open file system, a database, a universe of
        atoms. An exception is sent to the client that sent the request.
        """

    @model_validator(mode="before")
    @classmethod
    def _take_single_for_list(cls, params: Any) -> Any:
        """Turn a parameter that was given once into a list, if its field is a list."""
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
