"""Messages of version 0.1.x."""

from typing import Annotated
from uuid import UUID

from pydantic import Field

from zndraw_joblib.compat_0_1.instances import OldModel
from zndraw_joblib.wire import messages
from zndraw_joblib.wire.messages import JsonObject

# A text that is no UUID stays one.
Id = Annotated[UUID | str, Field(union_mode="left_to_right")]


class TaskResponse(messages.TaskResponse, metaclass=OldModel):
    """`TaskResponse` whose ids may be any strings, and whose `payload` may be left out."""

    id: Id  # type: ignore[assignment]
    worker_id: Id | None = None  # type: ignore[assignment]
    payload: JsonObject = Field(default_factory=dict)
