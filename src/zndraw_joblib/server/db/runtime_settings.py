"""Settings that operators change while servers run."""

from sqlalchemy import select

from zndraw_joblib.server.db.database import Transaction, dialect
from zndraw_joblib.server.db.tables import RuntimeSetting

settings = RuntimeSetting.__table__


async def get(tx: Transaction, name: str) -> str | None:
    """Return the value of a setting, None if it was never set."""
    statement = select(settings.c.value).where(settings.c.name == name)
    value: str | None = (await tx.execute(statement)).scalar_one_or_none()
    return value


async def put(tx: Transaction, name: str, value: str) -> None:
    """Set a setting."""
    statement = dialect(tx).insert(settings).values(name=name, value=value)
    await tx.execute(statement.on_conflict_do_update(index_elements=["name"], set_={"value": value}))


async def add(tx: Transaction, name: str, value: str) -> None:
    """Set a setting, unless it is set."""
    await tx.execute(dialect(tx).insert(settings).values(name=name, value=value).on_conflict_do_nothing())
