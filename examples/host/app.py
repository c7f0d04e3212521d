"""The host's app: users, simulations and the queue."""

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import socketio
from fastapi import FastAPI, HTTPException, Path
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

from examples.host import simulations
from examples.host.users import CurrentUser, UserCreate, UserRead, bearer, cookie, current_user, users
from zndraw_joblib import (
    JobLib,
    ProblemException,
    problem_exception_handler,
    register_socketio_handlers,
    validate_room_id,
)

DATABASE_URL = "sqlite+aiosqlite:///host.db"


async def own_room(room_id: Annotated[str, Path()], user: CurrentUser) -> str:
    """Return the room id. Raise 404 unless it is the user's own room, whose id is that of the user."""
    if validate_room_id(room_id) not in {str(user.id), "@global"} and not user.is_superuser:
        raise HTTPException(404, f"There is no room {room_id!r}")
    return room_id


def create_app(
    database_url: str | None = None, redis_url: str | None = None, secret: str | None = None
) -> FastAPI:
    """Return the app. The arguments default to `HOST_DATABASE_URL`, `HOST_REDIS_URL` and `HOST_SECRET`."""
    engine = create_async_engine(database_url or os.environ.get("HOST_DATABASE_URL", DATABASE_URL))
    redis_url = redis_url or os.environ.get("HOST_REDIS_URL")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await engine.dispose()

    app = FastAPI(title="A host", lifespan=lifespan)
    app.state.sessions = async_sessionmaker(engine, expire_on_commit=False)
    app.state.secret = secret or os.environ.get("HOST_SECRET") or secrets.token_urlsafe(32)
    add_users(app)
    app.include_router(simulations.router)

    # With the Redis manager, a socket gets the events of all processes of the host.
    manager = socketio.AsyncRedisManager(redis_url) if redis_url else None
    sio = socketio.AsyncServer(async_mode="asgi", client_manager=manager, cors_allowed_origins=[])
    joblib = JobLib(
        session_maker=app.state.sessions,
        identity=current_user,
        readable_room=own_room,
        tsio=sio,
        on_end={"save-energy": simulations.saver(app.state.sessions)},
    )
    joblib.mount(app, dashboard="/queue", health="/health")
    register_socketio_handlers(sio, joblib)
    app.mount("/socket.io", socketio.ASGIApp(sio))
    app.add_exception_handler(ProblemException, problem_exception_handler)
    return app


def add_users(app: FastAPI) -> None:
    """Add the routes of fastapi-users."""
    app.include_router(users.get_auth_router(bearer), prefix="/auth")
    app.include_router(users.get_auth_router(cookie), prefix="/auth/cookie")
    app.include_router(users.get_register_router(UserRead, UserCreate), prefix="/auth")
