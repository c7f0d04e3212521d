"""Generate the page of Socket.IO events from their models."""

import inspect

from sitegen.schemas import fields_table
from zndraw_joblib.contract.events import Event

_INTRODUCTION = """\
# Socket.IO events

Generated from the models. An event is a hint that may be lost; the REST API has the facts.
[Live events](../how-to/live-events.md) shows how a front-end uses them, and
[Event streams](rest.md#event-streams) lists the events of the streams over HTTP.
"""


def page() -> str:
    """Return a section for each event: who sends it, and its fields."""
    return "\n".join([_INTRODUCTION, *(_section(cls) for cls in Event.__subclasses__())])


def _section(cls: type[Event]) -> str:
    table = fields_table(cls.model_json_schema())
    return (
        f"## {cls.event_name}\n\n`{cls.__name__}`. {inspect.getdoc(cls)}\n\n{table or 'It has no fields.'}\n"
    )
