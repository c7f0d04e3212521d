"""Create the tables of jobs, workers, tasks and tokens."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "joblib_job",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("room_id", sa.String(length=128), nullable=False),
        sa.Column("category", sa.String(length=128), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column(
            "full_name",
            sa.Text(),
            sa.Computed("room_id || ':' || category || ':' || name", persisted=True),
            nullable=False,
        ),
        sa.Column("schema", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("deleted", sa.Boolean(), nullable=False),
        sa.Column("pending", sa.Integer(), nullable=False),
        sa.CheckConstraint("pending >= 0", name=op.f("ck_joblib_job_pending_counts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_joblib_job")),
        sa.UniqueConstraint("full_name", name=op.f("uq_joblib_job_full_name")),
        sa.UniqueConstraint("room_id", "category", "name", name=op.f("uq_joblib_job_room_id_category_name")),
    )
    op.create_table(
        "joblib_token",
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("is_superuser", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_joblib_token")),
        sa.UniqueConstraint("digest", name=op.f("uq_joblib_token_digest")),
    )
    op.create_table(
        "joblib_worker",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("owner_id", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_heartbeat", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_joblib_worker")),
    )
    op.create_index("ix_joblib_worker_last_heartbeat", "joblib_worker", ["last_heartbeat"], unique=False)

    op.create_table(
        "joblib_task",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False
        ),
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.Column("room_id", sa.String(length=128), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("completed_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("worker_id", sa.Uuid(), nullable=True),
        sa.Column("worker_owner_id", sa.String(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.CheckConstraint(
            "(completed_at IS NOT NULL) = (status IN ('cancelled', 'completed', 'failed'))",
            name=op.f("ck_joblib_task_completed_when_terminal"),
        ),
        sa.CheckConstraint(
            "NOT (status IN ('claimed', 'running')) OR claimed_at IS NOT NULL",
            name=op.f("ck_joblib_task_held_was_claimed"),
        ),
        sa.CheckConstraint(
            "status <> 'pending' OR (worker_id IS NULL AND started_at IS NULL)",
            name=op.f("ck_joblib_task_pending_is_free"),
        ),
        sa.CheckConstraint(
            "status IN ('cancelled', 'claimed', 'completed', 'failed', 'pending', 'running')",
            name=op.f("ck_joblib_task_status_known"),
        ),
        sa.CheckConstraint(
            "status NOT IN ('running', 'completed') OR started_at IS NOT NULL",
            name=op.f("ck_joblib_task_running_was_started"),
        ),
        sa.CheckConstraint("attempt >= 0", name=op.f("ck_joblib_task_attempt_counts")),
        sa.ForeignKeyConstraint(["job_id"], ["joblib_job.id"], name=op.f("fk_joblib_task_job_id")),
        sa.PrimaryKeyConstraint("seq", name=op.f("pk_joblib_task")),
        sa.UniqueConstraint("id", name=op.f("uq_joblib_task_id")),
    )
    op.create_index(
        "ix_joblib_task_held",
        "joblib_task",
        ["worker_id"],
        unique=False,
        sqlite_where=sa.text("status IN ('claimed', 'running')"),
        postgresql_where=sa.text("status IN ('claimed', 'running')"),
    )
    op.create_index(
        "ix_joblib_task_job_room", "joblib_task", ["job_id", "room_id", "created_at", "seq"], unique=False
    )
    op.create_index(
        "ix_joblib_task_pending",
        "joblib_task",
        ["job_id", "seq"],
        unique=False,
        sqlite_where=sa.text("status = 'pending'"),
        postgresql_where=sa.text("status = 'pending'"),
    )
    op.create_index("ix_joblib_task_room", "joblib_task", ["room_id", "created_at", "seq"], unique=False)
    op.create_index(
        "ix_joblib_task_room_status", "joblib_task", ["room_id", "status", "created_at", "seq"], unique=False
    )

    op.create_table(
        "joblib_worker_job",
        sa.Column("worker_id", sa.Uuid(), nullable=False),
        sa.Column("job_id", sa.Uuid(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["joblib_job.id"], name=op.f("fk_joblib_worker_job_job_id")),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["joblib_worker.id"], name=op.f("fk_joblib_worker_job_worker_id")
        ),
        sa.PrimaryKeyConstraint("worker_id", "job_id", name=op.f("pk_joblib_worker_job")),
    )
    op.create_index("ix_joblib_worker_job_job_id", "joblib_worker_job", ["job_id"], unique=False)


def downgrade() -> None:
    for table in ("joblib_worker_job", "joblib_task", "joblib_worker", "joblib_token", "joblib_job"):
        op.drop_table(table)
