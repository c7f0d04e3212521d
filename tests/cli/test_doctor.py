"""The command doctor against a running server, without one, and with faults; misspelt variables."""

import json
import re
import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from servers import Valkey
from waiting import wait_until

from cli.conftest import Stack
from cli.program import TIMEOUT, Program, RunningServer
from zndraw_joblib.cli import doctor
from zndraw_joblib.cli.display import passed, print_checks, warned
from zndraw_joblib.cli.doctor import Clocks, check_clocks, check_error


def checks_of(output: str) -> dict[str, tuple[str, str]]:
    """Return the state and the remedy of each check of a plain output."""
    lines = [line.split("\t") for line in output.splitlines()]
    return {name: (state, remedy) for state, name, _, remedy in lines}


def test_each_check_has_a_state_and_a_remedy(stack: Stack, tmp_path: Path) -> None:
    """A server that works passes; each fault fails its check with a remedy, and the exit code is 1."""
    # No server answers here, and no Redis.
    nowhere = ["doctor", "--url", "http://127.0.0.1:1"]
    nothing = "ZNDRAW_JOBLIB_DATABASE_URL=sqlite:///nothing.db"
    good, as_json, none, redis, typo, wrong = stack.program.run_all(
        [
            ["doctor"],
            ["doctor", "--json"],
            [nothing, *nowhere],
            ["ZNDRAW_JOBLIB_REDIS_URL=redis://:secret@127.0.0.1:1", "doctor"],
            ["ZNDRAW_JOBLIB_WORKER_TIMEOUT=5", "doctor"],
            ["ZNDRAW_JOBLIB_WORKERS=0", "doctor"],
        ]
    )
    found = checks_of(good.out)
    assert {"settings", "server", "database", "clocks", "sweeper"} <= set(found)
    assert {found[name][0] for name in ("settings", "server", "ready", "database", "clocks")} == {"ok"}
    assert found["redis"][0] == "skipped"
    assert found["disk"][0] in {"ok", "warning"}
    assert {check["name"] for check in json.loads(as_json.out)} == set(found)
    assert none.code == 1
    missing = checks_of(none.out)
    assert (missing["server"][0], missing["database"][0]) == ("failed", "failed")
    assert "zndraw-joblib serve" in missing["server"][1]
    assert missing["clocks"][0] == "skipped"
    assert redis.code == 1
    assert checks_of(redis.out)["redis"][0] == "failed"
    assert "secret" not in redis.out
    assert "Did you mean ZNDRAW_JOBLIB_WORKER_TIMEOUT_SECONDS?" in checks_of(typo.out)["settings"][1]
    assert (wrong.code, checks_of(wrong.out)["settings"][0]) == (1, "failed")


def test_long_lines_wrap_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lines of a check are below its first one, those of a remedy below its text."""
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_checks([passed("disk", "word " * 9), warned("a-check", "x", "remedy " * 7)])
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert [line.rstrip() for line in lines] == [
        "ok       disk     word word word word word word word word",
        "                  word",
        "warning  a-check  x",
        "                  → remedy remedy remedy remedy remedy",
        "                    remedy remedy",
    ]


def test_a_dead_redis_is_named_without_its_url(program: Program) -> None:
    """The server says so at /health/ready, which stays 200, because other tasks go on; doctor asks for it."""
    valkey = Valkey()
    with RunningServer(program, REDIS_URL=valkey.url) as server:
        ask = partial(httpx.get, f"{server.url}/health/ready", timeout=TIMEOUT)
        doctor = ["doctor", "--url", server.url]
        first, good = ask().json(), checks_of(program.run(*doctor).out)
        valkey.stop()
        wait_until(lambda: ask().json()["checks"]["redis"] != "ok")
        answer, bad = ask(), program.run(*doctor)
    assert (first["status"], first["checks"]["redis"], good["redis"][0]) == ("ready", "ok", "ok")
    assert (answer.status_code, answer.json()["status"]) == (200, "ready")
    assert answer.json()["checks"]["redis"].startswith("unavailable (ConnectionError): internal tasks")
    assert (bad.code, checks_of(bad.out)["redis"][0], checks_of(bad.out)["ready"][0]) == (1, "failed", "ok")


def test_clocks_that_differ_are_named() -> None:
    """The check names the clock, how far it is off, and the remedy."""
    [check] = check_clocks(Clocks(server=-90.0, database=0.2))
    assert check.state == "warning"
    assert "server is 90 s behind" in check.detail
    assert "NTP" in (check.remedy or "")


@pytest.mark.parametrize(("seconds", "ahead"), [(8, 0), (20, 8), (-3, -1)])
def test_a_slow_answer_is_no_clock_that_is_ahead(
    monkeypatch: pytest.MonkeyPatch, seconds: int, ahead: int
) -> None:
    """Only what no moment between the request and its answer explains is a difference of the clocks."""
    begin = datetime.now(UTC)
    moments = iter([begin - timedelta(seconds=2), begin + timedelta(seconds=12)])
    monkeypatch.setattr(doctor, "datetime", SimpleNamespace(now=lambda _: next(moments)))
    answer = SimpleNamespace(at=begin + timedelta(seconds=seconds))
    client = SimpleNamespace(read=lambda *_: answer)
    assert doctor._database_clock(client) == ahead  # type: ignore[arg-type]


def test_a_finding_has_its_code(stack: Stack) -> None:
    """The code leads to its section of the runbook."""
    with stack.server.connect() as connection:
        url = f"{connection.base_url}/v1/joblib/rooms/closed"
        connection.http.post(f"{url}/pause", headers=connection.get_headers()).raise_for_status()
        found = stack.program.run("doctor")
        connection.http.post(f"{url}/resume", headers=connection.get_headers()).raise_for_status()
    assert re.search(r"^ok\tqueue\tRoom closed is paused.*\[room-paused\]", found.out, re.MULTILINE)


def test_a_database_that_is_down_is_named() -> None:
    """The remedy of the problem, to repeat the request, does not help an operator."""
    check = check_error("Database unavailable: Connection refused. Repeat the request")
    assert check.remedy is not None
    assert "start it" in check.remedy
    assert check.detail == "Database unavailable: Connection refused"


def test_misspelt_variables_are_reported_at_the_start(program: Program) -> None:
    """`serve` names the nearest setting; a worker reports only what resembles a variable of its own."""
    typos = {"WORKER_TIMEOUT_SECOND": "1", "TOKN": "abc"}
    with RunningServer(program, **typos) as server:
        assert "ZNDRAW_JOBLIB_WORKER_TIMEOUT_SECOND has no effect" in server.stderr
        assert "Did you mean ZNDRAW_JOBLIB_WORKER_TIMEOUT_SECONDS?" in server.stderr
    settings = [f"ZNDRAW_JOBLIB_{name}={value}" for name, value in typos.items()]
    [worker] = program.run_all([[*settings, "worker", "nope.py", "--url", "http://127.0.0.1:1"]])
    assert "Did you mean ZNDRAW_JOBLIB_TOKEN?" in worker.err
    assert "WORKER_TIMEOUT" not in worker.err
