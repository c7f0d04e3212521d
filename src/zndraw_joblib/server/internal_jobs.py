"""Internal jobs of a host's app. Apart from `mount`, because few servers need taskiq."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from taskiq import AsyncBroker

from zndraw_joblib.server.internal.registration import offer_internal_jobs
from zndraw_joblib.server.internal.registry import InternalExecutor, InternalRegistry
from zndraw_joblib.server.mount import JobLib
from zndraw_joblib.server.ports import SessionMaker
from zndraw_joblib.server.store import schema
from zndraw_joblib.server.store.database import Database, SessionDatabase


async def register_internal_jobs(
    app: FastAPI,
    broker: AsyncBroker,
    extensions: Sequence[type[Any]],
    executor: InternalExecutor,
    session_factory: SessionMaker | Database,
) -> InternalRegistry:
    """Offer extensions as internal jobs: create or update their jobs, register their tasks with the broker.

    From then on the app accepts their tasks, whether the queue is mounted before or after. Any number of
    replicas may do so at once; the newest code's schema and policy (a `JobPolicy` in the class's `policy`)
    hold. Raises ValueError for an extension that cannot be a job.
    """
    joblib = getattr(app.state, "joblib", None)
    database = session_factory if isinstance(session_factory, Database) else SessionDatabase(session_factory)
    await schema.prepare(database)
    write = joblib.runtime.write if isinstance(joblib, JobLib) else database.write
    registry = await offer_internal_jobs(write, broker, extensions, executor)
    app.state.internal_registry = registry
    if isinstance(joblib, JobLib):
        joblib.dispatcher.wake()
    return registry
