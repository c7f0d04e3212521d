"""A submitter that repeats what a server did not answer."""

from contextlib import suppress
from functools import partial
from typing import Any

import httpx
from rest import V1
from servers import ServerProcess
from waiting import until


class Writers:
    """Submits one task after another, each with a key, to servers that may be killed; repeats a lost one."""

    def __init__(self, servers: list[ServerProcess], job: dict[str, Any]) -> None:
        self.made: list[str] = []
        self.is_over = False
        self._servers = servers
        self._url = f"{V1}/rooms/lab/tasks/{job['full_name']}"

    async def run(self) -> None:
        """Submit until `is_over`."""
        number = 0
        while not self.is_over:
            number += 1
            headers = {"Idempotency-Key": f"task-{number}"}
            await until(partial(self._submit, number, headers), interval=0.05)

    async def _submit(self, number: int, headers: dict[str, str]) -> bool:
        with suppress(httpx.HTTPError):
            async with self._servers[number % len(self._servers)].client() as client:
                response = await client.post(self._url, json={"payload": {}}, headers=headers, timeout=20)
                if response.status_code == 202:
                    self.made.append(response.json()["id"])
                    return True
        return False
