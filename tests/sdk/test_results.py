"""Results of any kind and size, from a real worker through a real server back to the client."""

import io
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import psutil
import pytest
from ase.build import molecule
from matplotlib.figure import Figure
from PIL import Image
from waiting import wait_until

from sdk import result_jobs
from sdk.jobs import Add
from sdk.live import TOKEN, LiveServer
from sdk.proxy import Proxy, Rule
from sdk.test_live_reports import texts
from zndraw_joblib.client.connection import Connection, connect
from zndraw_joblib.jobs.results import ResultFile
from zndraw_joblib.wire.messages import MAX_JSON_BYTES, JobRegisterRequest
from zndraw_joblib.wire.problems import ResultNotFound
from zndraw_joblib.wire.statuses import TaskStatus
from zndraw_joblib.worker.manager import JobManager
from zndraw_joblib.worker.rest import RestApi
from zndraw_joblib.worker.tasks import ClaimedTask

Make = Callable[..., JobManager]
MIB = 1024 * 1024


@dataclass
class Point:
    """A value with fields."""

    x: int
    y: float


def run(manager: JobManager, room: str) -> Any:
    """Run a task of `Add`; return it."""
    manager.register(Add, room=room)
    return manager.wait_for(manager.submit(Add(), room=room), 60)


def test_a_small_result_is_inline(worker: Make, room: str, subtests: pytest.Subtests) -> None:
    """It is in the report as JSON, and `result` returns what the job returned."""
    for case, result, check in [
        (
            "array",
            {"a": np.arange(6.0).reshape(2, 3)},
            lambda got: np.array_equal(got["a"], np.arange(6.0).reshape(2, 3)),
        ),
        ("nan", [float("nan"), np.float32(1.5)], lambda got: got[0] != got[0] and got[1] == 1.5),
        ("bytes", {"raw": b"\x00\xff"}, lambda got: got == {"raw": b"\x00\xff"}),
        ("atoms", molecule("H2O"), lambda got: got == molecule("H2O")),
        ("frame", pd.DataFrame({"x": [1, 2]}), lambda got: got.equals(pd.DataFrame({"x": [1, 2]}))),
    ]:
        with subtests.test(case):
            manager = worker(lambda task: result)
            task = run(manager, room)
            assert (task.status, task.error) == (TaskStatus.COMPLETED, None)
            assert task.result is not None
            assert check(manager.result(task.id))


@pytest.mark.parametrize(("size", "is_inline"), [(MAX_JSON_BYTES, True), (MAX_JSON_BYTES + 1, False)])
def test_the_limit_of_inline_results(worker: Make, room: str, size: int, is_inline: bool) -> None:
    """A result of exactly 1 MiB as JSON is inline; one byte more is uploaded."""
    text = "x" * (size - 2)
    manager = worker(lambda task: text)
    task = run(manager, room)
    assert (task.status, task.result) == (TaskStatus.COMPLETED, text if is_inline else None)
    assert manager.result(task.id) == text


def figure() -> Figure:
    """Return a plot."""
    made = Figure(figsize=(1, 1))
    made.add_subplot().plot([1, 2])
    return made


def open_file() -> Any:
    """Return an open file that was written to its end."""
    file = tempfile.TemporaryFile()  # noqa: SIM115 - the worker closes it
    file.write(b"content")
    return file


def test_a_binary_result_is_uploaded(
    worker: Make, room: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """`result` returns its bytes, or the array; no temporary file stays."""
    for case, make, check in [
        ("bytes", lambda: b"\x00\xff", lambda got: got == b"\x00\xff"),
        ("memory file", lambda: io.BytesIO(b"content"), lambda got: got == b"content"),
        ("open file", open_file, lambda got: got == b"content"),
        ("array", lambda: np.arange(500_000.0), lambda got: np.array_equal(got, np.arange(500_000.0))),
        (
            "image",
            lambda: Image.new("RGB", (2, 2), "red"),
            lambda got: Image.open(io.BytesIO(got)).getpixel((1, 1)) == (255, 0, 0),
        ),
        ("figure", figure, lambda got: Image.open(io.BytesIO(got)).format == "PNG"),
    ]:
        with subtests.test(case):
            # Other tests on this machine have files in the common folder.
            monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
            manager = worker(lambda task: make())
            task = run(manager, room)
            assert (task.status, task.error, task.result) == (TaskStatus.COMPLETED, None, None)
            assert check(manager.result(task.id))
            assert list(tmp_path.glob("zndraw-joblib-result-*")) == []


def test_a_file_is_a_result(worker: Make, room: str, tmp_path: Path) -> None:
    """With its name and content type; `download_result` writes it to a file."""
    source = tmp_path / "frames.csv"
    source.write_bytes(b"a,b\n")
    manager = worker(
        lambda task: source if task.extension.a else ResultFile(source, "text/x-own", "other.txt")
    )
    manager.register(Add, room=room)
    for payload, expected in ((Add(a=1), ("text/csv", "frames.csv")), (Add(), ("text/x-own", "other.txt"))):
        task = manager.wait_for(manager.submit(payload, room=room), 30)
        assert task.error is None
        got = manager.download_result(task.id, tmp_path / "copy")
        assert (got.content_type, got.filename) == expected
        assert (tmp_path / "copy").read_bytes() == b"a,b\n"


def test_a_result_that_cannot_be_encoded_fails_the_task(
    worker: Make, api: Connection, room: str, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """Its error code says so, and its error names the place in the value. Its log and progress stay."""
    for case, make, text in [
        ("missing", lambda path: path / "missing", "there is no file"),
        ("text file", lambda path: io.StringIO("x"), "the file is open for text"),
        (
            "object",
            lambda path: {"frames": [0, {"cell": object()}]},
            "result.frames[1].cell: an object of object",
        ),
        ("masked array", lambda path: {"deep": [np.ma.array([1])]}, "result.deep[0]: a masked array"),
    ]:
        with subtests.test(case):

            def execute(task: ClaimedTask) -> Any:
                task.progress(3, 3)
                print("all done")
                return make(tmp_path)

            manager = worker(execute)
            task = run(manager, room)
            assert (task.status, task.error_code) == (TaskStatus.FAILED, "result-not-serializable")
            assert text in task.error
            assert task.progress.current == 3
            assert texts(api, str(task.id)) == ["all done"]


def test_a_task_without_a_result(worker: Make, room: str) -> None:
    """`result` raises the server's problem."""
    manager = worker()
    manager.register(Add, room=room)
    with pytest.raises(ResultNotFound, match="pending"):
        manager.result(manager.submit(Add(), room=room))


def test_a_payload_comes_back_as_it_was(worker: Make, room: str) -> None:
    """An array, bytes and NaN in a payload are what they were in the job."""
    manager = worker(lambda task: task.extension.check())
    manager.register(result_jobs.Anything, room=room)
    payload = {"value": {"a": np.arange(3), "b": b"\xff", "n": float("nan")}}
    by_name = manager.submit(f"{room}:modifiers:Anything", payload, room=room)
    by_instance = manager.submit(result_jobs.Anything(**payload), room=room)
    for task_id in (by_name, by_instance):
        task = manager.wait_for(task_id, 30)
        assert (task.error, task.result) == (None, "ndarray bytes float")


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_values_go_both_ways(worker: Make, room: str, executor: str) -> None:
    """A payload with values of many kinds is the result of its job, from threads and processes."""
    manager = worker(result_jobs.execute, executor=executor)
    manager.register(result_jobs.Anything, room=room)
    frame = pd.DataFrame({"x": [1, 2], "t": pd.to_datetime(["2030-01-02", None])}, index=["a", "b"])
    water = molecule("H2O")
    value = {
        "floats": [float("nan"), float("-inf"), np.float32(1.5), 1 + 2j],
        "array": np.arange(6, dtype="int16").reshape(2, 3),
        "frame": frame,
        "series": frame.x,
        "atoms": [water],
        "cell": water.cell,
        "raw": b"\xff",
        "missing": [None, pd.NaT],
        "dates": [date(2030, 1, 2), timedelta(days=1)],
        "point": Point(1, float("inf")),
    }
    for payload in ({"value": value}, result_jobs.Anything(value=value)):
        given = payload if isinstance(payload, dict) else None
        job = f"{room}:modifiers:Anything" if given else payload
        task = manager.wait_for(manager.submit(job, given, room=room), 60)
        assert (task.status, task.error) == (TaskStatus.COMPLETED, None)
        got = manager.result(task.id)
        assert list(got) == list(value)
        assert repr(got["floats"]) == "[nan, -inf, 1.5, (1+2j)]"
        assert (got["array"].dtype, got["array"].tolist()) == (np.dtype("int16"), [[0, 1, 2], [3, 4, 5]])
        pd.testing.assert_frame_equal(got["frame"], frame)
        pd.testing.assert_series_equal(got["series"], frame.x)
        assert got["atoms"] == [water]
        assert np.array_equal(got["cell"], water.cell.array)
        others = {name: got[name] for name in ("raw", "missing", "dates", "point")}
        assert others == {
            "raw": b"\xff",
            "missing": [None, None],
            "dates": ["2030-01-02", "P1D"],
            "point": {"x": 1, "y": float("inf")},
        }


@pytest.mark.parametrize("executor", ["thread", "process"])
@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_each_executor_uploads(worker: Make, room: str, executor: str, is_async: bool) -> None:
    """Content, files and NaN from threads, coroutines and processes."""
    execute = result_jobs.execute_async if is_async else result_jobs.execute
    manager = worker(execute, executor=executor)
    manager.register(result_jobs.Make, room=room)
    for kind in ("large", "open", "bytes"):
        task = manager.wait_for(manager.submit(result_jobs.Make(kind=kind), room=room), 60)
        assert (task.status, task.error) == (TaskStatus.COMPLETED, None)
        assert manager.result(task.id) == result_jobs.expected(kind)


def test_a_refused_result_fails_the_task(own_server: Callable[..., LiveServer], room: str) -> None:
    """The error names the server's limit; the worker continues."""
    server = own_server(max_task_result_bytes=1000)
    with server.connect() as api, JobManager(api, execute=lambda task: bytes(task.extension.a)) as manager:
        manager.register(Add, room=room)
        task = manager.wait_for(manager.submit(Add(a=5_000_000), room=room), 30)
        assert task.status == TaskStatus.FAILED
        assert "max_task_result_bytes" in (task.error or "")
        assert manager.result(manager.wait_for(manager.submit(Add(a=10), room=room), 30).id) == bytes(10)


def test_a_store_that_others_fill_at_the_moment_is_retried(
    own_server: Callable[..., LiveServer], room: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker uploads its result after another upload, which held the rest of the store, has ended."""
    server = own_server(max_stored_result_bytes=4 * MIB, max_share_per_user=1)
    sent, end = threading.Event(), threading.Event()

    def slow() -> Iterator[bytes]:
        yield bytes(2 * MIB)
        sent.set()
        assert end.wait(60)
        raise ConnectionError

    with server.connect() as api, JobManager(api, execute=lambda task: bytes(3 * MIB)) as manager:
        rest = RestApi(api)
        worker_id = rest.register(room, JobRegisterRequest(category="modifiers", name="Other")).worker_id
        held = manager.submit(f"{room}:modifiers:Other", {}, room=room)
        rest.claim(worker_id)
        url = f"{server.url}/v1/joblib/tasks/{held}/result?attempt=1"
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(httpx.put, url, content=slow(), headers=api.get_headers(), timeout=60)
            assert sent.wait(60)
            manager.register(Add, room=room)
            task_id = manager.submit(Add(), room=room)
            wait_until(lambda: "other uploads hold the rest" in caplog.text)
            end.set()
            assert isinstance(other.exception(60), ConnectionError)
        task = manager.wait_for(task_id, 60)
        assert (task.status, task.error) == (TaskStatus.COMPLETED, None)


@pytest.mark.parametrize("etag", ['"another"', ""])
def test_a_download_never_mixes_two_results(
    worker: Make, server: LiveServer, room: str, tmp_path: Path, etag: str
) -> None:
    """The connection ends in the middle of one result; meanwhile the task has another one."""
    content = bytes(range(256)) * 10
    task = run(worker(lambda task: content), room)
    head = f"HTTP/1.1 200 OK\r\nContent-Length: 2560\r\nETag: {etag}\r\nConnection: close\r\n\r\n"
    cut = [head.encode() + b"x" * 1000]
    rule: Rule = lambda method, path: cut.pop() if cut and path.endswith("/result") else None  # noqa: E731
    with Proxy(server.url, rule) as proxy, connect(proxy.url, TOKEN) as behind, JobManager(behind) as client:
        stored = client.download_result(task.id, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content
    assert stored.size == len(content)


def test_a_download_continues_where_it_was_cut(
    worker: Make, server: LiveServer, room: str, tmp_path: Path
) -> None:
    """The same result, of which the first bytes are there, is not requested again from its beginning."""
    content = bytes(range(256)) * 10
    task = run(worker(lambda task: content), room)
    with server.connect() as api:
        url = f"{server.url}/v1/joblib/tasks/{task.id}/result"
        etag = api.http.head(url, headers=api.get_headers()).headers["ETag"]
    head = f"HTTP/1.1 200 OK\r\nContent-Length: 2560\r\nETag: {etag}\r\nConnection: close\r\n\r\n"
    # Others than the first bytes of the result, to see which ones are requested.
    cut = [head.encode() + b"x" * 1000]
    rule: Rule = lambda method, path: cut.pop() if cut and path.endswith("/result") else None  # noqa: E731
    with Proxy(server.url, rule) as proxy, connect(proxy.url, TOKEN) as behind, JobManager(behind) as client:
        client.download_result(task.id, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"x" * 1000 + content[1000:]


def test_a_huge_result_needs_little_memory(
    own_server: Callable[..., LiveServer], room: str, tmp_path: Path
) -> None:
    """A file of 200 MiB goes through worker, server and client; the process grows by less than 60 MiB."""
    source, size = tmp_path / "huge.bin", 200 * MIB
    with source.open("wb") as file:
        for n in range(200):
            file.write(bytes([n]) * MIB)
    server = own_server()
    with server.connect() as api, JobManager(api, execute=lambda task: source) as manager:
        manager.register(Add, room=room)
        manager.wait_for(manager.submit(Add(), room=room), 60)
        before = psutil.Process().memory_info().rss
        task = manager.wait_for(manager.submit(Add(), room=room), 60)
        stored = manager.download_result(task.id, tmp_path / "copy.bin")
        assert psutil.Process().memory_info().rss - before < 60 * MIB
    assert stored.size == size
    copy = (tmp_path / "copy.bin").open("rb")
    with copy, source.open("rb") as file:
        while part := file.read(MIB):
            assert part == copy.read(MIB)
