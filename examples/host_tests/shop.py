"""A small host: it keeps orders in its own table, and the queue ships them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException, Request
from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from zndraw_joblib import Identity, JobLib

STOCK = 10


class Base(DeclarativeBase):
    """The host's own tables."""


class Order(Base):
    """An order."""

    __tablename__ = "order"

    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str]
    count: Mapped[int]


class NewOrder(BaseModel):
    """The body of a request that orders."""

    item: str
    count: int = 1


async def current_user(x_user: Annotated[str, Header()] = "guest") -> Identity:
    """Return the user that a header names. A real host has real users."""
    return Identity(x_user, is_superuser=x_user == "admin")


def create_app(database_url: str) -> FastAPI:
    """Return the host's app."""
    engine = create_async_engine(database_url)
    sessions = async_sessionmaker(engine)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        yield
        await engine.dispose()

    app = FastAPI(title="A shop", lifespan=lifespan)
    app.state.sessions = sessions
    JobLib(session_maker=sessions, identity=current_user).mount(app)
    app.add_api_route("/orders", place_order, methods=["POST"], status_code=201)
    app.add_api_route("/orders", list_orders, methods=["GET"])
    return app


async def place_order(order: NewOrder, request: Request) -> dict[str, str]:
    """Store an order and submit its task, in one transaction."""
    joblib: JobLib = request.app.state.joblib
    async with request.app.state.sessions() as session:
        session.add(Order(item=order.item, count=order.count))
        payload = order.model_dump()
        task = await joblib.submit("@global:modifiers:Ship", payload, room="shop", session=session)
        if order.count > STOCK:
            raise HTTPException(409, f"Only {STOCK} are left")  # neither order nor task exists
        await session.commit()
    return {"task": str(task.id)}


async def list_orders(request: Request) -> list[str]:
    """Return what was ordered."""
    async with request.app.state.sessions() as session:
        return list(await session.scalars(select(Order.item)))
