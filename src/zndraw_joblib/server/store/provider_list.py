"""All providers by full name, for operators, with their open requests."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from sqlalchemy import bindparam, func, select, tuple_

from zndraw_joblib.contract.names import JobName
from zndraw_joblib.server.store.bulk import among, padded
from zndraw_joblib.server.store.database import Transaction
from zndraw_joblib.server.store.providers import COLUMNS, NAME, ProviderRow, providers, requests

_AFTER = [bindparam(part, type_=providers.c[part].type) for part in JobName._fields]
_PAGE = select(*COLUMNS).where(tuple_(*NAME) > tuple_(*_AFTER)).order_by(*NAME).limit(bindparam("limit"))
_OPEN = (
    select(requests.c.provider_id, func.count())
    .where(
        among(requests.c.provider_id, bindparam("ids")),
        requests.c.expires_at > bindparam("now", type_=requests.c.expires_at.type),
    )
    .group_by(requests.c.provider_id)
)


async def page(tx: Transaction, after: JobName, limit: int) -> list[ProviderRow]:
    """Return the providers that follow a full name, in the order of room, category and name."""
    return [ProviderRow(*row) for row in await tx.execute(_PAGE, {**after._asdict(), "limit": limit})]


async def open_requests(tx: Transaction, ids: Sequence[UUID], now: datetime) -> dict[UUID, int]:
    """Return how many requests of each provider have no result yet; a provider without one is missing."""
    rows = await tx.execute(_OPEN, {"ids": padded(ids), "now": now})
    return {provider_id: number for provider_id, number in rows}
