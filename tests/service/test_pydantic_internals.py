"""Models that are built without pydantic's constructor are like all others."""

import pickle
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from pydantic import ValidationError

from zndraw_joblib.server.queue import rules_answers
from zndraw_joblib.server.queue.sql_task_rows import TaskRecord
from zndraw_joblib.wire.messages import TaskResponse
from zndraw_joblib.wire.statuses import TaskStatus


def test_another_pydantic_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then models are built by its public function."""
    assert rules_answers.construct is rules_answers.fast_construct
    assert rules_answers.is_fast_right()
    monkeypatch.setattr(rules_answers, "_set", lambda *_: None)
    assert not rules_answers.is_fast_right()


@pytest.mark.parametrize("construct", [rules_answers.fast_construct, rules_answers.public_construct])
def test_a_task_response_is_a_model_like_any_other(construct: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has all fields, and is compared, dumped, validated, copied, changed and pickled like others."""
    monkeypatch.setattr(rules_answers, "construct", construct)
    now = datetime.now(UTC)
    task = TaskRecord(
        seq=1,
        id=uuid4(),
        job_id=uuid4(),
        job_name="@global:modifiers:Rotate",
        room_id="lab",
        status=TaskStatus.PENDING,
        created_by="submitter",
        payload={"angle": [1]},
        created_at=now,
        run_at=now,
        lane=-3,
    )
    made = rules_answers.task_response(task, 7)
    usual = TaskResponse.model_construct(**dict(made))
    assert dict(made).keys() == TaskResponse.model_fields.keys()
    assert (made, repr(made), made.model_fields_set) == (usual, repr(usual), usual.model_fields_set)
    assert (made.model_extra, made.model_dump()) == (None, usual.model_dump())
    assert TaskResponse.model_validate_json(made.model_dump_json()) == made
    assert pickle.loads(pickle.dumps(made)) == made.model_copy() == made  # noqa: S301 - its own bytes
    made.error = "changed"
    assert (made.error, rules_answers.task_response(task).error) == ("changed", None)
    with pytest.raises((ValidationError, ValueError), match="no field"):
        made.unknown = 1  # type: ignore[attr-defined]
