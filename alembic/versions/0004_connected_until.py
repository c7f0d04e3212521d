"""Rename the providers' column `heard_until` to `connected_until`."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_TABLE = "joblib_provider"


def upgrade() -> None:
    _rename("heard_until", "connected_until")


def downgrade() -> None:
    _rename("connected_until", "heard_until")


def _rename(old: str, new: str) -> None:
    op.alter_column(_TABLE, old, new_column_name=new)
    # PostgreSQL 18 names NOT NULL constraints after their column and keeps the name when the column changes.
    if op.get_bind().dialect.name == "postgresql":
        old_name, new_name = f"{_TABLE}_{old}_not_null", f"{_TABLE}_{new}_not_null"
        found = sa.text("SELECT 1 FROM pg_constraint WHERE conrelid = to_regclass(:t) AND conname = :name")
        if op.get_bind().execute(found, {"t": _TABLE, "name": old_name}).first():
            op.execute(f'ALTER TABLE {_TABLE} RENAME CONSTRAINT "{old_name}" TO "{new_name}"')
