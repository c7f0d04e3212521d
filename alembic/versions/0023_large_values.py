"""Store large payloads and results without PostgreSQL's compression, which takes longer than to write them."""

from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None

_COLUMNS = [("joblib_task", "payload"), ("joblib_task", "result"), ("joblib_result_part", "data")]


def upgrade() -> None:
    _store("EXTERNAL")


def downgrade() -> None:
    _store("EXTENDED")


def _store(storage: str) -> None:
    # Only the catalog changes: stored values stay as they are.
    for table, column in _COLUMNS if op.get_bind().dialect.name == "postgresql" else ():
        op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} SET STORAGE {storage}")
