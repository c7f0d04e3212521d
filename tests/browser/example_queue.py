"""A queue as an operator meets it: tasks in each status, with results, a log, a failure and waiting tasks."""

import base64
import io
import struct
from typing import Any

import httpx
from PIL import Image
from rest import V1, claim, register, report, submit

TRACEBACK = """Traceback (most recent call last):
  File "/srv/jobs/relax.py", line 42, in run
    energy = self.calculator.energy(atoms)
  File "/srv/jobs/relax.py", line 17, in energy
    raise ValueError("The cell has no volume")
ValueError: The cell has no volume
"""
SCHEMA = {
    "type": "object",
    "properties": {
        "steps": {"type": "integer", "default": 100, "description": "Steps of the relaxation"},
        "structure": {"type": "string", "enum": ["bcc", "fcc", "hcp"], "default": "bcc"},
    },
}


class ExampleQueue:
    """Fills a server. `tasks` are the tasks by a name; `jobs` the jobs."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self.client = client
        self.tasks: dict[str, dict[str, Any]] = {}
        self.jobs: dict[str, dict[str, Any]] = {}

    async def fill(self) -> None:
        """Submit, run, complete and fail tasks of three jobs in three rooms."""
        client = self.client
        self.jobs["relax"] = await register(client, "Relax", schema=SCHEMA)
        self.jobs["render"] = await register(client, "Render", category="analysis")
        self.jobs["export"] = await register(client, "Export", room="lab")
        for room, steps in (("lab", 100), ("lab", 250), ("teaching", 50), ("archive", 10)):
            await self._run(
                "relax", room, "completed", result={"energy": -7.25, "converged": True}, steps=steps
            )
        self.tasks["array"] = await self._run("relax", "lab", "completed", result=_array(), steps=7)
        self.tasks["image"] = await self._run("render", "lab", "completed", upload=_image(), width=2**53 + 1)
        failure = {"type": "ValueError", "traceback": TRACEBACK, "full_traceback": f"cause\n{TRACEBACK}"}
        for room in ("lab", "teaching"):
            self.tasks["failed"] = await self._run(
                *("relax", room, "failed"), error="The cell has no volume", failure=failure, structure="hcp"
            )
        self.tasks["running"] = await self.start("relax", "lab", steps=1000, structure="fcc")
        lines = [_line(n, f"Step {n}: energy {-7 - n / 10:.2f} eV") for n in range(1, 13)]
        lines.append(_line(13, "The step is large; it is halved", level="warning"))
        progress = {"current": 420, "total": 1000, "unit": "steps", "message": "Relaxing the cell"}
        await self.tell("running", progress=progress, log={"first": 1, "lines": lines})
        for number in range(5):
            self.tasks["waiting"] = await submit(client, self.jobs["relax"], "teaching", steps=number)
        self.tasks["stuck"] = await submit(client, self.jobs["export"], "lab", format="xyz")
        await client.delete(f"{V1}/workers/{self.jobs['export']['worker_id']}")

    async def empty(self) -> None:
        """Let the job's worker finish the tasks that wait, so that it claims the next one."""
        while task := await claim(self.client, self.jobs["relax"]["worker_id"]):
            for status in ("running", "completed"):
                assert (await report(self.client, task, status, attempt=1)).status_code == 200

    async def start(self, job: str, room: str, **payload: Any) -> dict[str, Any]:
        """Submit a task and let the job's worker start it."""
        task = await submit(self.client, self.jobs[job], room, **payload)
        claimed = await claim(self.client, self.jobs[job]["worker_id"])
        assert claimed is not None
        assert claimed["id"] == task["id"]
        response = await report(self.client, task, "running", attempt=1)
        assert response.status_code == 200, response.text
        return task

    async def finish(self, job: str, room: str, result: Any, **payload: Any) -> dict[str, Any]:
        """Run a task of a job to its end, with a result."""
        return await self._run(job, room, "completed", result=result, **payload)

    async def tell(self, name: str, **fields: Any) -> None:
        """Report on a held task."""
        url = f"{V1}/tasks/{self.tasks[name]['id']}"
        response = await self.client.patch(url, json={"attempt": 1, **fields})
        assert response.status_code == 200, response.text

    async def _run(
        self, job: str, room: str, status: str, upload: bytes | None = None, **fields: Any
    ) -> dict[str, Any]:
        told = {name: fields.pop(name) for name in ("result", "error", "failure") if name in fields}
        task = await self.start(job, room, **fields)
        if upload is not None:
            url = f"{V1}/tasks/{task['id']}/result"
            stored = await self.client.put(
                url,
                params={"attempt": 1, "filename": "cell.png"},
                content=upload,
                headers={"Content-Type": "image/png"},
            )
            assert stored.status_code in {200, 201}, stored.text
        response = await report(self.client, task, status, attempt=1, **told)
        assert response.status_code == 200, response.text
        return task


def _line(n: int, text: str, level: str = "info") -> dict[str, Any]:
    return {"at": f"2026-01-02T03:04:{n:02}Z", "text": text, "level": level, "source": "stdout"}


def _array() -> dict[str, Any]:
    """Return a result with an array of 24 by 24, as the SDK encodes it."""
    values = [((x - 12) ** 2 + (y - 12) ** 2) / 100 for x in range(24) for y in range(24)]
    data = base64.b64encode(struct.pack(f"<{len(values)}d", *values)).decode()
    density = {"$zndraw": "ndarray", "dtype": "float64", "shape": [24, 24], "data": data}
    return {"energy": -7.5, "atoms": 9007199254740993, "density": density}


def _image() -> bytes:
    """Return a picture of 96 by 64 pixels as PNG."""
    image = Image.new("RGB", (96, 64))
    image.putdata([(40 + 2 * x, 90 + y, 200 - x) for y in range(64) for x in range(96)])
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
