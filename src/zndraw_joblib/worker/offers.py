"""What a worker offers to read: a class, and the handler that its reads get."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from zndraw_joblib.contract.providers import ProviderRegisterRequest
from zndraw_joblib.worker.caller import category_of
from zndraw_joblib.worker.wishes import checked


@dataclass(frozen=True, slots=True)
class Offer:
    """A provider. `ids` are those it has had: registered anew, it gets another one."""

    cls: type[Any]
    name: str
    room_id: str
    handler: Any
    ids: tuple[UUID, ...] = ()

    @property
    def content_type(self) -> str:
        """Return what kind of bytes its reads give."""
        return str(getattr(self.cls, "content_type", "application/json"))

    def request(self, worker_id: UUID | None) -> ProviderRegisterRequest:
        """Return the body that registers it. Raises ValueError for a name or a type that none may have."""
        fields = {
            "category": category_of(self.cls),
            "name": self.name,
            "schema": self.cls.model_json_schema(),
            "content_type": self.content_type,
        }
        return checked(ProviderRegisterRequest, {**fields, "worker_id": worker_id})
