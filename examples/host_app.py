"""A host: an app with its own users, rooms and database, and a job queue mounted into it.

    pip install '.[server]'
    uvicorn examples.host_app:app

Create a user with `POST /users`, and send the returned key as the header `X-Key` to `/v1/joblib`.
On PostgreSQL (HOST_DATABASE_URL) first run `zndraw-joblib db upgrade` with the same URL.
"""

import hashlib
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import socketio
from fastapi import Depends, FastAPI, HTTPException, Path, Request
from fastapi.security import APIKeyHeader
from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from zndraw_joblib import (
    JobLib,
    ProblemException,
    problem_exception_handler,
    register_socketio_handlers,
    validate_room_id,
)

DATABASE_URL = os.environ.get("HOST_DATABASE_URL", "sqlite+aiosqlite:///host.db")


class Base(DeclarativeBase):
    """The host's own tables; the queue's tables are in the same database."""


class User(Base):
    """A user with a key. The queue reads only `id` and `is_superuser`."""

    __tablename__ = "user"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    key_digest: Mapped[str] = mapped_column(unique=True)
    is_superuser: Mapped[bool] = mapped_column(default=False)


class Room(Base):
    """A room of a user. Only its owner may read a private room; a locked room accepts no changes."""

    __tablename__ = "room"

    id: Mapped[str] = mapped_column(primary_key=True)
    owner_id: Mapped[int]
    is_private: Mapped[bool] = mapped_column(default=False)
    is_locked: Mapped[bool] = mapped_column(default=False)


class NewUser(BaseModel):
    """The body of a request that creates a user."""

    name: str


class RoomSettings(BaseModel):
    """What the owner of a room can change."""

    is_private: bool = False
    is_locked: bool = False


def digest(key: str) -> str:
    """Return the hash to store. A key has 256 random bits, so it needs no salt."""
    return hashlib.sha256(key.encode()).hexdigest()


async def open_session(request: Request) -> AsyncIterator[AsyncSession]:
    """Open a session for the duration of the request."""
    async with request.app.state.sessions() as session:
        yield session


Session = Annotated[AsyncSession, Depends(open_session)]
Key = Annotated[str | None, Depends(APIKeyHeader(name="X-Key", auto_error=False))]


async def current_user(session: Session, key: Key) -> User:
    """Return the user whose key is in the header `X-Key`."""
    found = await session.scalars(select(User).where(User.key_digest == digest(key or "")))
    user = found.first()
    if user is None:
        raise HTTPException(401, "Send your key in the header X-Key", {"WWW-Authenticate": "X-Key"})
    return user


CurrentUser = Annotated[User, Depends(current_user)]
RoomId = Annotated[str, Path()]


async def readable_room(room_id: RoomId, session: Session, user: CurrentUser) -> str:
    """Return the room id. Raise 404 for another user's private room."""
    room = await session.get(Room, validate_room_id(room_id))
    if room is not None and room.is_private and room.owner_id != user.id:
        raise HTTPException(404, f"There is no room {room_id!r}")
    return room_id


async def writable_room(
    room_id: Annotated[str, Depends(readable_room)], session: Session, user: CurrentUser
) -> str:
    """Return the room id. Raise 423 for a locked room."""
    room = await session.get(Room, room_id)
    if room is not None and room.is_locked and not user.is_superuser:
        raise HTTPException(423, f"Room {room_id!r} is locked")
    return room_id


def create_app(database_url: str = DATABASE_URL) -> FastAPI:
    """Return the host's app, with the queue mounted."""
    engine = create_async_engine(database_url)
    sessions = async_sessionmaker(engine)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        yield
        await engine.dispose()

    app = FastAPI(title="A host", lifespan=lifespan)
    app.state.sessions = sessions

    # The queue uses the host's users, database and room rules.
    sio = socketio.AsyncServer(async_mode="asgi", cors_allowed_origins=[])
    joblib = JobLib(
        session_maker=sessions,
        identity=current_user,
        readable_room=readable_room,
        writable_room=writable_room,
        tsio=sio,
    )
    joblib.mount(app)
    # Socket.IO clients connect with the header `X-Key` too, and join a room with `join_room`.
    register_socketio_handlers(sio, joblib)
    app.mount("/socket.io", socketio.ASGIApp(sio))
    # The queue handles errors of its own routes. This handles its exceptions in the host's routes.
    app.add_exception_handler(ProblemException, problem_exception_handler)

    app.add_api_route("/users", sign_up, methods=["POST"], status_code=201)
    app.add_api_route("/rooms/{room_id}", change_room, methods=["PUT"])
    return app


async def sign_up(new: NewUser, session: Session) -> dict[str, str]:
    """Create a user and return its key, which is shown only once. The first user is a superuser."""
    key = secrets.token_urlsafe(32)
    is_first = (await session.scalars(select(User.id).limit(1))).first() is None
    session.add(User(name=new.name, key_digest=digest(key), is_superuser=is_first))
    try:
        await session.commit()
    except IntegrityError as error:
        raise HTTPException(409, f"{new.name!r} is taken") from error
    return {"name": new.name, "key": key}


async def change_room(
    room_id: RoomId, settings: RoomSettings, session: Session, user: CurrentUser
) -> RoomSettings:
    """Create a room, or change the caller's own room."""
    room = await session.get(Room, validate_room_id(room_id))
    if room is None:
        room = Room(id=room_id, owner_id=user.id)
        session.add(room)
    if room.owner_id != user.id:
        raise HTTPException(403, "The room belongs to another user")
    room.is_private, room.is_locked = settings.is_private, settings.is_locked
    await session.commit()
    return settings


app = create_app()
