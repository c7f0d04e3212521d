"""Rows that a fuzzed request may address, so that requests get past the lookup of their ids."""

import itertools
from typing import Any

import httpx

V1 = "/v1/joblib"
ROOM = "lab"
_STATES = ((), ("running",), ("running", "completed"), ("running", "failed"), ("cancelled",))


Values = dict[str, list[Any]]


class Rows:
    """Jobs, tasks in every status, workers, providers and a provider request of a running server."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self._numbers = itertools.count()
        self._job = ""
        self._values: Values = {}
        self._operation = ""

    def values_for(self, operation: str) -> Values:
        """Return ids and names by the parameter or field that takes them.

        Add new rows if the operation before this one may have removed them.
        """
        if operation != self._operation:
            if not self._operation.startswith("GET "):
                self._values = self._add()
            self._operation = operation
        return self._values

    def _add(self) -> Values:
        for path in ("resume", f"rooms/{ROOM}/resume"):  # a request may have paused them
            self._post(path, {})
        self._put("limits/gpu", {"max_in_flight": 1})
        worker = self._post("workers", {})["id"]
        self._job = self._add_job(worker)
        tasks = [self._add_task(worker, states) for states in _STATES]
        other = self._post("workers", {})["id"]
        tasks.append(self._post(f"rooms/{ROOM}/tasks/{self._job}", {"payload": {"angle": 2}})["id"])
        provider = self._add_provider(other)
        self._ask(provider["full_name"])
        return {
            "worker_id": [worker, other],
            "X-Worker-ID": [worker, other],
            "room_id": [ROOM, "@global"],
            "name": [self._job, provider["full_name"]],
            "task_id": tasks,
            "provider_id": [provider["id"]],
            "id": tasks,
            "attempt": [1],
            "limit": ["gpu"],
        }

    def _add_job(self, worker: str) -> str:
        name = f"Rotate{next(self._numbers)}"  # a request may have paused the one before
        body = {"category": "modifiers", "name": name, "schema": {"type": "object"}, "worker_id": worker}
        return str(self._put(f"rooms/{ROOM}/jobs", body)["full_name"])

    def _add_task(self, worker: str, states: tuple[str, ...]) -> str:
        self._post(f"rooms/{ROOM}/tasks/{self._job}", {"payload": {"angle": 1}})
        task = self._post("tasks/claim", {"worker_id": worker})["task"]
        for status in states:
            body = {"status": status, "worker_id": worker, "attempt": task["attempt"]}
            self._send("PATCH", f"tasks/{task['id']}", body)
        return str(task["id"])

    def _add_provider(self, worker: str) -> dict[str, Any]:
        body = {"category": "filesystem", "name": "disk", "schema": {}, "worker_id": worker}
        return self._put(f"rooms/{ROOM}/providers", body)

    def _ask(self, provider: str) -> None:
        """Ask the provider, which will not answer."""
        self._client.get(f"{V1}/rooms/{ROOM}/providers/{provider}", params={"path": "/"})

    def _post(self, path: str, body: dict[str, Any]) -> Any:
        return self._send("POST", path, body)

    def _put(self, path: str, body: dict[str, Any]) -> Any:
        return self._send("PUT", path, body)

    def _send(self, method: str, path: str, body: dict[str, Any]) -> Any:
        response = self._client.request(method, f"{V1}/{path}", json=body)
        assert response.is_success, response.text
        return response.json()
