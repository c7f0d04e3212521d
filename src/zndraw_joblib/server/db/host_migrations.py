"""Exclude the queue's tables from the migrations of a host."""

from sqlalchemy.schema import SchemaItem

PREFIX = "joblib_"


def alembic_include_object(
    item: SchemaItem, name: str | None, kind: str, reflected: bool, compare_to: SchemaItem | None
) -> bool:
    """Return False for the queue's tables, so that ``alembic revision --autogenerate`` does not drop them.

    Pass it to ``context.configure(include_object=…)`` in a host's `env.py`. A host that already has such a
    function calls this one in it, and returns False if it does.
    """
    is_unknown_to_host = kind == "table" and reflected and compare_to is None
    return not (is_unknown_to_host and (name or "").startswith(PREFIX))
