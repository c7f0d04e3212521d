"""List all providers for operators."""

from zndraw_joblib.contract.names import JobName
from zndraw_joblib.contract.operations import ProviderEntries, ProviderEntry
from zndraw_joblib.server.ports import CursorPage
from zndraw_joblib.server.service import cursors
from zndraw_joblib.server.store import provider_list as store
from zndraw_joblib.server.store.database import Transaction

_KIND = "providers"


async def page(tx: Transaction, part: CursorPage) -> ProviderEntries:
    """Return providers by full name, each with its number of open requests."""
    after = JobName("", "", "")
    if part.cursor is not None:
        after = JobName(*cursors.decode(_KIND, part.cursor, [str, str, str]))
    found = await store.page(tx, after, part.limit + 1)
    listed = found[: part.limit]
    if not listed:
        return ProviderEntries(items=[])
    now = await tx.now()
    open_requests = await store.open_requests(tx, [provider.id for provider in listed], now)
    items = [
        ProviderEntry(
            id=provider.id,
            full_name=str(provider.name),
            schema_=provider.schema,
            content_type=provider.content_type,
            worker_id=provider.worker_id,
            created_at=provider.created_at,
            connected=provider.connected_until > now,
            open_requests=open_requests.get(provider.id, 0),
            **provider.name._asdict(),
        )
        for provider in listed
    ]
    has_more = len(found) > part.limit
    return ProviderEntries(items=items, next=cursors.encode(_KIND, *listed[-1].name) if has_more else None)
