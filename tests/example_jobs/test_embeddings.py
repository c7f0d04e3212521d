"""The example of a job that takes a batch: batches give the same vectors as texts one by one."""

import json
from pathlib import Path

import pytest
from cli.conftest import Stack


def test_texts_are_embedded_alike_in_batches(examples: Stack, tmp_path: Path) -> None:
    """The batch has texts for one model; an empty text fails alone."""
    texts = [{"text": f"text {number} of many", "model": "small"} for number in range(6)]
    lines = [json.dumps({"payload": payload}) for payload in ({"text": "", "model": "small"}, *texts)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    program = examples.program
    empty, *ids = program.ok("submit", "embed", "--from", str(tmp_path / "texts.jsonl")).split()
    program.ok("task", ids[-1], "--follow")
    ended = [json.loads(program.ok("task", task_id, "--json")) for task_id in ids]
    alone = program.ok("submit", "embed_alone", "text=text 0 of many", "model=small", "--wait")
    assert ended[0]["result"] == pytest.approx(json.loads(alone), abs=1e-4)
    assert len({str(task["result"]) for task in ended}) == 6
    refused = json.loads(program.ok("task", empty, "--json"))
    assert refused["error"] == "ValueError: the text is empty"
