"""Models that are built without pydantic's constructor are like all others."""

import pickle
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from pydantic import ValidationError

from zndraw_joblib.contract.messages import TaskResponse
from zndraw_joblib.contract.names import JobName
from zndraw_joblib.contract.status import TaskStatus
from zndraw_joblib.server.service import pydantic_internals, serializers
from zndraw_joblib.server.store.tasks import TaskRecord


def test_another_pydantic_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then models are built by its public function."""
    assert pydantic_internals.construct is pydantic_internals.fast_construct
    assert pydantic_internals.is_fast_right()
    monkeypatch.setattr(pydantic_internals, "_set", lambda *_: None)
    assert not pydantic_internals.is_fast_right()


@pytest.mark.parametrize(
    "construct", [pydantic_internals.fast_construct, pydantic_internals.public_construct]
)
def test_a_task_response_is_a_model_like_any_other(construct: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has all fields, and is compared, dumped, validated, copied, changed and pickled like others."""
    monkeypatch.setattr(serializers, "construct", construct)
    now = datetime.now(UTC)
    task = TaskRecord(
        seq=1,
        id=uuid4(),
        job_id=uuid4(),
        job=JobName("@global", "modifiers", "Rotate"),
        room_id="lab",
        status=TaskStatus.PENDING,
        created_by="submitter",
        payload={"angle": [1]},
        created_at=now,
        run_at=now,
        lane=-3,
    )
    made = serializers.task_response(task, 7)
    usual = TaskResponse.model_construct(**dict(made))
    assert dict(made).keys() == TaskResponse.model_fields.keys()
    assert (made, repr(made), made.model_fields_set) == (usual, repr(usual), usual.model_fields_set)
    assert (made.model_extra, made.model_dump()) == (None, usual.model_dump())
    assert TaskResponse.model_validate_json(made.model_dump_json()) == made
    assert pickle.loads(pickle.dumps(made)) == made.model_copy() == made  # noqa: S301 - its own bytes
    made.error = "changed"
    assert (made.error, serializers.task_response(task).error) == ("changed", None)
    with pytest.raises((ValidationError, ValueError), match="no field"):
        made.unknown = 1  # type: ignore[attr-defined]
