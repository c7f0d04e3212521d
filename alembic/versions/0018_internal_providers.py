"""Let providers have no worker: those of `@internal`."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_TABLE = "joblib_provider"
_REQUIRED, _OPTIONAL = "worker_id CHAR(32) NOT NULL", "worker_id CHAR(32)"


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        _rewrite(_REQUIRED, _OPTIONAL)
    else:
        op.alter_column(_TABLE, "worker_id", nullable=True)


def downgrade() -> None:
    # Earlier releases know no provider without a worker.
    providers = sa.table(_TABLE, sa.column("id"), sa.column("worker_id"))
    ids = sa.select(providers.c.id).where(providers.c.worker_id.is_(None))
    for name in ("joblib_provider_call", "joblib_provider_worker"):
        children = sa.table(name, sa.column("provider_id"))
        op.execute(sa.delete(children).where(children.c.provider_id.in_(ids)))
    op.execute(sa.delete(providers).where(providers.c.worker_id.is_(None)))
    if op.get_bind().dialect.name == "sqlite":
        _rewrite(_OPTIONAL, _REQUIRED)
    else:
        op.alter_column(_TABLE, "worker_id", nullable=False)


def _rewrite(old: str, new: str) -> None:
    """Change the text of the table's schema, as SQLite's documentation of ALTER TABLE describes.

    A copy of the table would need its rows, which other tables refer to, to be deleted.
    """
    connection = op.get_bind()
    version = connection.execute(sa.text("PRAGMA schema_version")).scalar_one()
    connection.execute(sa.text("PRAGMA writable_schema = ON"))
    schema = sa.table("sqlite_master", sa.column("name"), sa.column("type"), sa.column("sql"))
    text = sa.func.replace(schema.c.sql, old, new)
    is_table = sa.and_(schema.c.type == "table", schema.c.name == _TABLE)
    connection.execute(sa.update(schema).where(is_table).values(sql=text))
    connection.execute(sa.text(f"PRAGMA schema_version = {version + 1}"))
    connection.execute(sa.text("PRAGMA writable_schema = OFF"))
