"""Add the table of long payloads, which SQLite keeps apart from the rows of tasks; PostgreSQL leaves it empty."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Payloads that are in the rows of tasks stay there.
    op.create_table(
        "joblib_payload",
        sa.Column(
            "task_seq",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            autoincrement=False,
            nullable=False,
        ),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("task_seq", name="pk_joblib_payload"),
    )


def downgrade() -> None:
    op.execute(
        "UPDATE joblib_task SET payload = (SELECT content FROM joblib_payload WHERE task_seq = joblib_task.seq) "
        "WHERE seq IN (SELECT task_seq FROM joblib_payload)"
    )
    op.drop_table("joblib_payload")
