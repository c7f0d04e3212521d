"""A host: an app with its own users, rooms and database, and a job queue mounted into it.

    pip install 'zndraw-joblib[server]'
    uvicorn examples.host_app:app

Sign up with `POST /users`, send the key it gives as the header `X-Key`, and use `/v1/joblib` with it.
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
    verify_readable_room,
    verify_writable_room,
)

DATABASE_URL = os.environ.get("HOST_DATABASE_URL", "sqlite+aiosqlite:///host.db")


class Base(DeclarativeBase):
    """The host's own tables, beside which the queue keeps its own."""


class User(Base):
    """Somebody with a key. The queue asks a user for `id` and `is_superuser`, and for nothing else."""

    __tablename__ = "user"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    key_digest: Mapped[str] = mapped_column(unique=True)
    is_superuser: Mapped[bool] = mapped_column(default=False)


class Room(Base):
    """A room that somebody has made. A private one is its owner's alone, a locked one takes no changes."""

    __tablename__ = "room"

    id: Mapped[str] = mapped_column(primary_key=True)
    owner_id: Mapped[int]
    is_private: Mapped[bool] = mapped_column(default=False)
    is_locked: Mapped[bool] = mapped_column(default=False)


class NewUser(BaseModel):
    """Who signs up."""

    name: str


class RoomSettings(BaseModel):
    """What the owner of a room says about it."""

    is_private: bool = False
    is_locked: bool = False


def digest(key: str) -> str:
    """Return what is stored of a key: it has 256 bits of chance, so a plain hash keeps it secret."""
    return hashlib.sha256(key.encode()).hexdigest()


async def open_session(request: Request) -> AsyncIterator[AsyncSession]:
    """Open a session for as long as the request needs it."""
    async with request.app.state.sessions() as session:
        yield session


Session = Annotated[AsyncSession, Depends(open_session)]
Key = Annotated[str | None, Depends(APIKeyHeader(name="X-Key", auto_error=False))]


async def current_user(session: Session, key: Key) -> User:
    """Return who asks, by the header `X-Key`."""
    found = await session.scalars(select(User).where(User.key_digest == digest(key or "")))
    user = found.first()
    if user is None:
        raise HTTPException(401, "Send your key in the header X-Key", {"WWW-Authenticate": "X-Key"})
    return user


CurrentUser = Annotated[User, Depends(current_user)]
RoomId = Annotated[str, Path()]


async def readable_room(room_id: RoomId, session: Session, user: CurrentUser) -> str:
    """Let nobody but its owner know that a private room exists."""
    room = await session.get(Room, validate_room_id(room_id))
    if room is not None and room.is_private and room.owner_id != user.id:
        raise HTTPException(404, f"There is no room {room_id!r}")
    return room_id


async def writable_room(
    room_id: Annotated[str, Depends(readable_room)], session: Session, user: CurrentUser
) -> str:
    """Refuse changes to a locked room."""
    room = await session.get(Room, room_id)
    if room is not None and room.is_locked and not user.is_superuser:
        raise HTTPException(423, f"Room {room_id!r} is locked")
    return room_id


def create_app(database_url: str = DATABASE_URL) -> FastAPI:
    """Return the host's app, with the queue in it."""
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

    # The queue, with the host's users, database and rules of rooms.
    sio = socketio.AsyncServer(async_mode="asgi", cors_allowed_origins=[])
    joblib = JobLib(session_maker=sessions, identity=current_user, tsio=sio)
    joblib.mount(app)
    # What happens, live: sockets connect with the header `X-Key` too, and join rooms by `join_room`.
    register_socketio_handlers(sio, joblib)
    app.mount("/socket.io", socketio.ASGIApp(sio))
    app.dependency_overrides[verify_readable_room] = readable_room
    app.dependency_overrides[verify_writable_room] = writable_room
    # The queue answers its own errors; this is for what the host's own routes raise of it.
    app.add_exception_handler(ProblemException, problem_exception_handler)

    app.add_api_route("/users", sign_up, methods=["POST"], status_code=201)
    app.add_api_route("/rooms/{room_id}", change_room, methods=["PUT"])
    return app


async def sign_up(new: NewUser, session: Session) -> dict[str, str]:
    """Make a user; the first one is a superuser. The key is shown this once."""
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
    """Make a room or change one's own."""
    room = await session.get(Room, validate_room_id(room_id))
    if room is None:
        room = Room(id=room_id, owner_id=user.id)
        session.add(room)
    if room.owner_id != user.id:
        raise HTTPException(403, "The room belongs to somebody else")
    room.is_private, room.is_locked = settings.is_private, settings.is_locked
    await session.commit()
    return settings


app = create_app()
