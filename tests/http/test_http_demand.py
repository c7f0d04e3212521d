"""The demand over HTTP: who may read it, and what its parameters may be."""

from typing import Any

import httpx
from rest import V1, expect_problem, register, submit

LABELS = {
    "gpu": "'gpu' is no label",
    "gpu=": "'gpu=' is no label",
    "g:pu=1": "no key of a label",
    ",".join(f"k{number}=1" for number in range(40)): "at most 32",
    "x" * 5000: "at most 4096",
    "a=\x00": "printable",
}


async def test_labels_of_a_demand_are_those_of_a_worker(client: httpx.AsyncClient) -> None:
    """Others are refused with the name of the parameter."""
    job = await register(client)
    for labels, text in LABELS.items():
        for path in ("demand", f"jobs/{job['full_name']}/demand"):
            response = await client.get(f"{V1}/{path}", params={"labels": labels})
            detail = expect_problem(response, 422, "invalid-request")["detail"]
            assert detail.startswith("query.labels: ")
            assert text in detail


async def test_a_demand_is_of_jobs_or_of_rooms(client: httpx.AsyncClient) -> None:
    """Not of both, of at most 100, and of jobs that exist; KEDA reads a number from the answer."""
    job = await register(client)
    await submit(client, job)
    name = job["full_name"]

    async def detail(status: int, **params: Any) -> str:
        response = await client.get(f"{V1}/demand", params=params)
        kind = "job-not-found" if status == 404 else "invalid-request"
        return str(expect_problem(response, status, kind)["detail"])

    assert "not both" in await detail(422, job=name, room="lab")
    assert "query.job" in await detail(422, job=[f"lab:a:{number}" for number in range(101)])
    assert "lab:a:b" in await detail(404, job=["lab:a:c", "lab:a:b"])
    for path, params in ((f"jobs/{name}/demand", {}), ("demand", {"job": [name, name]}), ("demand", {})):
        answer = (await client.get(f"{V1}/{path}", params=params)).json()
        assert type(answer["desired_slots"]) is int
        assert (answer["queued"], answer["desired_slots"]) == (1, 1), path
