"""A host as it was written for version 0.1.x: old import paths, overrides, its own rows and its own sweeper.

Only the marked lines are new. It registers its internal job when it is made, before any event loop runs.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any, ClassVar
from uuid import UUID, uuid4

from fastapi import FastAPI, Header
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlmodel import Field, SQLModel
from taskiq import InMemoryBroker
from zndraw_joblib.dependencies import get_frame_room_cleanup, validate_room_id, verify_writable_room
from zndraw_joblib.events import JobsInvalidate, ProvidersInvalidate
from zndraw_joblib.exceptions import InvalidRoomId, ProblemException, problem_exception_handler
from zndraw_joblib.models import ProviderRecord, Worker
from zndraw_joblib.registry import ensure_internal_jobs, register_internal_jobs
from zndraw_joblib.router import router
from zndraw_joblib.settings import JobLibSettings
from zndraw_joblib.sweeper import run_sweeper

from zndraw_joblib import JobLib  # new
from zndraw_joblib.client import Category, Extension

EVENTS = (JobsInvalidate, ProvidersInvalidate)
# Of the names that are imported above.
WARNINGS = 17


class User(SQLModel):
    """A user of the host."""

    id: UUID
    is_superuser: bool = False


class Note(SQLModel, table=True):
    """A table of the host."""

    id: UUID = Field(default_factory=uuid4, primary_key=True)
    text: str


class Center(Extension):
    """An internal job."""

    category: ClassVar[Category] = Category.MODIFIER

    def run(self, vis: Any, **kwargs: Any) -> None:
        """Do nothing."""


ROOT = User(id=UUID(int=1), is_superuser=True)


async def current_user(x_user: Annotated[UUID | None, Header()] = None) -> User:
    """Return the user of a header, by default the superuser."""
    return User(id=x_user) if x_user else ROOT


async def unlocked_room(room_id: str) -> str:
    """Refuse changes of one room, as a host does with a locked one."""
    if validate_room_id(room_id) == "locked":
        raise InvalidRoomId.exception("The room is locked")
    return room_id


class OldHost:
    """The app, what it has recorded, and its own functions."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.sessions = async_sessionmaker(engine, expire_on_commit=False)
        self.cleaned: list[set[str]] = []
        self.ran: list[tuple[str, dict[str, Any], str]] = []
        self.emitted: list[tuple[Any, str]] = []
        self.settings = JobLibSettings(allowed_categories=[*Category, "filesystem"])
        self.app = FastAPI()
        self.app.include_router(router)
        self.app.add_exception_handler(ProblemException, problem_exception_handler)
        self.app.dependency_overrides[verify_writable_room] = unlocked_room
        self.app.dependency_overrides[get_frame_room_cleanup] = lambda: self.clean_up
        self.joblib = JobLib(
            session_maker=self.sessions, identity=current_user, settings=self.settings
        )  # new
        self.joblib.mount(self.app)  # new

    def register_jobs(self) -> None:
        """Register the internal job, as a module of the host does when it is imported."""

        async def register() -> None:
            try:
                await register_internal_jobs(
                    self.app, InMemoryBroker(), [Center], self.execute, self.sessions
                )
            finally:
                await self.engine.dispose()

        asyncio.run(register())

    async def ensure_jobs(self) -> None:
        """Create the rows of the internal jobs, as the command of a deployment does."""
        await ensure_internal_jobs([Center], self.get_session)

    async def execute(self, cls: type[Any], payload: dict[str, Any], room_id: str, task_id: str) -> None:
        """Run an internal task."""
        self.ran.append((cls.__name__, payload, room_id))

    async def clean_up(self, rooms: set[str]) -> None:
        """Forget the frames of rooms."""
        self.cleaned.append(rooms)

    async def create_tables(self) -> None:
        """Create the host's own tables and those of the queue."""
        async with self.engine.begin() as connection:
            await connection.run_sync(SQLModel.metadata.create_all)
            await connection.run_sync(self.joblib.create_tables)  # new

    async def get_session(self) -> AsyncIterator[AsyncSession]:
        """Yield a session."""
        async with self.sessions() as session:
            yield session

    async def emit(self, model: Any, *, room: str) -> None:
        """Send an event, as a wrapper of Socket.IO does."""
        self.emitted.append((model, room))

    async def add_frames(self, room: str, user: User, **worker: Any) -> Worker:
        """Offer the frames of a room by rows that the host builds itself."""
        async with self.sessions() as session:
            row = Worker(user_id=user.id, **worker)
            session.add(row)
            await session.flush()
            for category in ("frames", "filesystem"):
                provider = ProviderRecord(
                    room_id=room, category=category, name="all", schema_={}, user_id=user.id, worker_id=row.id
                )
                assert provider.full_name == f"{room}:{category}:all"
                session.add(provider)
            await session.commit()
        return row

    def sweep(self, clean_up: Callable[[set[str]], Awaitable[object]]) -> Awaitable[None]:
        """Sweep until cancelled."""
        settings = JobLibSettings(worker_timeout_seconds=0.1, sweeper_interval_seconds=0.1)
        return run_sweeper(
            get_session=self.get_session, settings=settings, tsio=self, on_frame_rooms=clean_up
        )
