"""A worker reads the results that the payloads of its tasks refer to."""

from collections.abc import Callable
from uuid import UUID

import httpx
import pytest
from rest import V1

from sdk.live import TOKEN, LiveServer
from zndraw_joblib.wire.problems import TooManyRequests
from zndraw_joblib.worker.rest import RestApi


def test_a_full_share_of_downloads_makes_no_result_unusable(own_server: Callable[..., LiveServer]) -> None:
    """However often it is refused: the worker tries again, and the task does not fail."""
    server = own_server(max_downloads=2)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with (
        server.connect() as connection,
        httpx.Client(base_url=server.url, headers=headers, timeout=60) as client,
    ):
        body = {"category": "modifiers", "name": "Large"}
        job = client.put(f"{V1}/rooms/lab/jobs", json=body).json()
        tasks = f"{V1}/rooms/lab/tasks/{job['full_name']}"
        first = client.post(tasks, json={"payload": {}}).json()["id"]
        client.post(f"{V1}/tasks/claim", json={"worker_id": job["worker_id"]}).raise_for_status()
        client.patch(f"{V1}/tasks/{first}", json={"status": "running"}).raise_for_status()
        content = b'"%s"' % (b"x" * 100_000)
        path, kind = f"{V1}/tasks/{first}/result", {"Content-Type": "application/json"}
        client.put(path, params={"attempt": 1}, content=content, headers=kind).raise_for_status()
        client.patch(f"{V1}/tasks/{first}", json={"status": "completed"}).raise_for_status()
        after = {"payload": {"text": {"$result": {"task": first}}}, "after": {"tasks": [first]}}
        step = UUID(client.post(tasks, json=after).json()["id"])
        rest, downloads = RestApi(connection), server.joblib.downloads
        downloads.take("admin")
        for _ in range(12):
            with pytest.raises(TooManyRequests):
                rest.predecessor_result(UUID(first), step)
        downloads.give_back("admin")
        assert rest.predecessor_result(UUID(first), step) == "x" * 100_000
