"""A backup that is made as the page says, while the server runs, is a working queue."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import httpx
from cli.program import TIMEOUT, Program, RunningServer

from docs.code import code
from docs.commands import commands, typed

TOKEN = "a-token-of-the-backup"
JOBS = "/v1/joblib/rooms/lab/jobs"
SUBMIT = "/v1/joblib/rooms/lab/tasks/lab:analysis:Area"
JOB = {"category": "analysis", "name": "Area", "schema": {}}


def statement() -> str:
    """Return the statement that the page gives to SQLite."""
    found = [
        words
        for block in code("console")
        if block.page.name == "backup.md"
        for _, words in commands(typed(block.language, block.text))
        if words[:1] == ["sqlite3"]
    ]
    [[_, file, text]] = found
    assert file == "zndraw-joblib.db"
    return text


def test_a_copy_of_a_running_server_is_a_working_queue(tmp_path: Path) -> None:
    """It has all tasks that were submitted before, and not those after it."""
    [copy] = re.findall(r"'(.*)'", statement())
    program = Program(tmp_path, ADMIN_TOKEN=TOKEN)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with (
        RunningServer(program) as server,
        httpx.Client(base_url=server.url, headers=headers, timeout=TIMEOUT) as client,
    ):
        assert client.put(JOBS, json=JOB).status_code == 201
        before = client.post(SUBMIT, json={"payload": {"width": 3}}).json()["id"]
        with closing(sqlite3.connect(tmp_path / "zndraw-joblib.db")) as connection:
            connection.execute(statement().replace(copy, str(tmp_path / copy)))
        assert client.post(SUBMIT, json={"payload": {"width": 4}}).status_code == 202
    url = f"sqlite:///{tmp_path / copy}"
    with (
        RunningServer(program, "--database-url", url) as server,
        httpx.Client(base_url=server.url, headers=headers, timeout=TIMEOUT) as client,
    ):
        tasks = client.get("/v1/joblib/rooms/lab/tasks").json()["items"]
        assert [task["id"] for task in tasks] == [before]
        assert client.post(SUBMIT, json={"payload": {"width": 5}}).status_code == 202
