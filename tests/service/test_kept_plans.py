"""The plan of a claim that a server made for a new database, and kept, fits a backlog that comes at once."""

from collections.abc import Iterator
from functools import partial
from uuid import uuid4

import pytest
from databases import PostgresDatabases, on_postgresql
from plans.explained import Explainer
from replica import OWNER, Replica
from sqlalchemy import text

from zndraw_joblib.server.queue.rules_claims import Claim, claim_with_one_statement


@pytest.fixture
def postgres_url(postgres: PostgresDatabases) -> Iterator[str]:
    """Return the URL of a new database: the plan depends on how large the indexes have become."""
    name = postgres.create()
    yield postgres.url.format(name)
    postgres.drop(name)


@on_postgresql
@pytest.mark.parametrize("is_analyzed", [False, True], ids=["new", "analyzed"])
async def test_a_plan_made_for_few_tasks_fits_many(replica: Replica, *, is_analyzed: bool) -> None:
    """Also if statistics of its few tasks are known."""
    job = await replica.register()
    assert job.worker_id is not None
    item = Claim(OWNER, job.worker_id, 15, claim_id=uuid4(), task_limit=9)
    await replica.submit(job)
    # As on the server's own connections.
    await replica.execute(text(f'ALTER DATABASE "{replica.engine.url.database}" SET enable_seqscan = off'))
    if is_analyzed:
        await replica.execute(text("ANALYZE joblib_task"))
    await replica.engine.dispose()
    with Explainer(replica.engine) as explainer:
        plans = await explainer.plans(partial(claim_with_one_statement, items=[item]))
    [plan] = [plan for plan in plans if plan.is_generic]
    assert plan.by("joblib_task") == {"ix_joblib_task_queue", "ix_joblib_task_held", "uq_joblib_task_id"}, (
        plan.text
    )
