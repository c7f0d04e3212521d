"""What the reader's own app has: names that the documentation uses without defining them."""

from collections.abc import Callable
from typing import Annotated, Any

import socketio
from alembic import context
from fastapi import FastAPI, Path, Request
from opentelemetry import trace
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from taskiq import InMemoryBroker

from zndraw_joblib import Extension, Identity, JobLib, JobManager, ResultBackend

__all__ = [
    "Base",
    "CenterAtoms",
    "MyBackend",
    "Relax",
    "User",
    "app",
    "broker",
    "connection",
    "context",
    "current_user",
    "joblib",
    "make_jwt",
    "manager",
    "my_backend",
    "readable_room",
    "session_maker",
    "sessions",
    "sio",
    "token",
    "tracer",
    "trajectory",
    "url",
    "user_of_session",
    "work_on",
    "writable_room",
]


class Base(DeclarativeBase):
    """The host's tables."""


class CenterAtoms(Extension):
    """An internal job."""


class Relax(Extension):
    """A job."""

    steps: int = 0

    def run(self, vis: Any) -> None:
        """Relax."""


class User(Base):
    """A user of the host."""

    __tablename__ = "user"
    key: Mapped[int] = mapped_column(primary_key=True)
    is_admin: Mapped[bool]


MyBackend: Callable[..., ResultBackend]


def current_user() -> Identity:
    """Return the host's user."""
    return Identity("user", is_superuser=False)


def user_of_session(request: Request) -> Identity | None:
    """Return the host's user by the session's cookie."""
    return Identity("user", is_superuser=False) if request.cookies else None


def readable_room(room_id: Annotated[str, Path()]) -> str:
    """Return a room that the user may read."""
    return room_id


def make_jwt(user: str, minutes: int) -> str:
    """Return a token of the host for a user."""
    return f"{user} {minutes}"


writable_room = readable_room


def work_on(step: int) -> None:
    """Do a step of a job."""


app = FastAPI()
broker = InMemoryBroker()
connection: Any = None
my_backend: ResultBackend
sessions: async_sessionmaker[AsyncSession]
session_maker: async_sessionmaker[AsyncSession]
sio: socketio.AsyncServer
token, url = "", ""
tracer = trace.get_tracer(__name__)
trajectory: Any = None
manager: JobManager
joblib: JobLib
