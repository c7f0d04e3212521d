"""A host with a queue, and what its tests do with both: run tasks, and look at the host's own table."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import httpx
from fastapi import FastAPI
from rest import V1, claim, register, report
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from zndraw_joblib import Identity, JobLib

ROOT = Identity("root", is_superuser=True)


class Base(DeclarativeBase):
    """The host's own tables."""


class Order(Base):
    """A row that the host writes in the transaction in which it submits a task."""

    __tablename__ = "host_order"
    id: Mapped[int] = mapped_column(primary_key=True)


class Host:
    """A running host, its queue, its sessions, and a client that is a superuser."""

    def __init__(self, joblib: JobLib, app: FastAPI, engine: AsyncEngine, client: httpx.AsyncClient) -> None:
        self.joblib, self.app, self.engine, self.client = joblib, app, engine, client
        self.sessions: async_sessionmaker[AsyncSession] = async_sessionmaker(engine)

    async def register(self, name: str = "Rotate", room: str = "@global", **fields: Any) -> dict[str, Any]:
        """Register a job with a worker."""
        return await register(self.client, name, room, **fields)

    async def claim(self, job: dict[str, Any], wait: float | None = None) -> dict[str, Any] | None:
        """Claim a task for the job's worker."""
        return await claim(self.client, job["worker_id"], wait)

    async def end(self, job: dict[str, Any], status: str = "completed", **fields: Any) -> dict[str, Any]:
        """Claim the next task of a job, run it and report its end."""
        claimed = await self.claim(job)
        assert claimed is not None
        for each, values in (("running", {}), (status, fields)):
            response = await report(self.client, claimed, each, attempt=claimed["attempt"], **values)
            assert response.status_code == 200, response.text
        return claimed

    async def exists(self, task_id: UUID) -> bool:
        """Return whether other clients see a task."""
        return (await self.client.get(f"{V1}/tasks/{task_id}")).status_code == 200


@asynccontextmanager
async def running_host(url: str, **options: Any) -> AsyncIterator[Host]:
    """Run a host on a database."""
    engine = create_async_engine(url)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    app = FastAPI()
    joblib = JobLib(session_maker=async_sessionmaker(engine), identity=lambda: ROOT, **options)
    joblib.mount(app)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    try:
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://host") as client,
        ):
            yield Host(joblib, app, engine, client)
    finally:
        await engine.dispose()
