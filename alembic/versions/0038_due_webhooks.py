"""Index due webhooks by their owners too, those whose last attempt failed apart, and disabled ones."""

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

_WEBHOOK = "joblib_webhook"
_DUE = "due_at IS NOT NULL"
_INDEXES = {
    "due": (["due_at"], f"{_DUE} AND failures = 0"),
    "due_of_owner": (["owner_id", "due_at"], f"{_DUE} AND failures = 0"),
    "failing": (["due_at"], f"{_DUE} AND failures > 0"),
    "failing_of_owner": (["owner_id", "due_at"], f"{_DUE} AND failures > 0"),
    "disabled": (["disabled_at"], "disabled_at IS NOT NULL AND name IS NOT NULL"),
}


def upgrade() -> None:
    op.drop_index(f"ix_{_WEBHOOK}_due", _WEBHOOK)
    for name, (columns, condition) in _INDEXES.items():
        _index(name, columns, condition)


def downgrade() -> None:
    for name in _INDEXES:
        op.drop_index(f"ix_{_WEBHOOK}_{name}", _WEBHOOK)
    _index("due", ["due_at"], _DUE)


def _index(name: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(f"ix_{_WEBHOOK}_{name}", _WEBHOOK, columns, sqlite_where=where, postgresql_where=where)
