"""Unusual names in every place where a client can send one."""

import unicodedata
from typing import Any
from urllib.parse import quote

import httpx
from databases import on_both
from rest import V1, expect_problem, get_task, register, report, submit

LONG = "x" * 129
NASTY = ["a/b", LONG, "\x00", "a\x00b", "a\nb", "\x1f", "a\u2028b", "a\u202eb", "\ufeff", "a b\x7f", "../up"]
NO_NAMES = [
    "",
    " ",
    "a b",
    "a:b",
    "@a",
    "-a",
    ".a",
    "..",
    "a?b",
    "a#b",
    "a%b",
    "a\\b",
    "one two",
    "a\n",
    *NASTY,
]
NAMES = ["a", "_", "A-1.2_b", "9", "名前", "ñandú", "x" * 128, "é" * 128]


def percent_encode(text: str) -> str:
    """Percent-encode all characters, slashes too."""
    return quote(text, safe="")


def expect_client_error(response: httpx.Response) -> None:
    """Check that the response is a 4xx problem."""
    assert 400 <= response.status_code < 500, (response.request.url, response.text)
    assert response.headers["content-type"] == "application/problem+json", response.request.url


async def test_invalid_job_names_are_refused(client: httpx.AsyncClient) -> None:
    """Any other name or category is 422, and no row is written."""
    for text in NO_NAMES:
        for body in ({"category": "modifiers", "name": text}, {"category": text, "name": "Rotate"}):
            expect_problem(await client.put(f"{V1}/rooms/lab/jobs", json=body), 422, "invalid-request")
    assert (await client.get(f"{V1}/rooms/lab/jobs")).json()["total"] == 0
    assert (await client.get(f"{V1}/workers")).json()["total"] == 0


@on_both
async def test_every_valid_job_name_can_be_used(client: httpx.AsyncClient) -> None:
    """The job can be read and listed, and tasks can be submitted, under exactly this name."""
    combined = unicodedata.normalize("NFD", "é")
    for name in [*NAMES, combined, "क्षि", "a\u200db"]:
        body = {"category": "modifiers", "name": name}
        response = await client.put(f"{V1}/rooms/lab/jobs", json=body)
        if name not in NAMES and response.status_code == 422:
            continue
        assert response.status_code == 201, name
        job = response.json()
        assert job["name"] == name
        shown = await client.get(f"{V1}/rooms/lab/jobs/{percent_encode(job['full_name'])}")
        assert shown.json() == {**job, "worker_id": None}, name
        assert (await submit(client, job))["job_name"] == job["full_name"]
        url = f"{V1}/workers/{job['worker_id']}/jobs/{percent_encode(job['full_name'])}"
        assert (await client.delete(url)).status_code == 204


@on_both
async def test_almost_any_room_name_is_valid(client: httpx.AsyncClient) -> None:
    """1-128 printable characters without `@`, `:` and `/`; each is a separate room."""
    rooms = [
        "a",
        "a b",
        "räum-1",
        "部屋",
        "a%b",
        "50%25",
        "a?b&c=d#e",
        "a\\b",
        "x" * 128,
        "🧪",
        "+",
        "'\";--",
        "a.b",
    ]
    job = await register(client)
    for room in rooms:
        response = await client.post(
            f"{V1}/rooms/{percent_encode(room)}/tasks/{percent_encode(job['full_name'])}", json={}
        )
        assert (response.status_code, response.json().get("room_id")) == (202, room)
        own = await client.put(
            f"{V1}/rooms/{percent_encode(room)}/jobs", json={"category": "modifiers", "name": "X"}
        )
        assert own.json()["full_name"] == f"{room}:modifiers:X"
    for room in rooms:
        page = (await client.get(f"{V1}/rooms/{percent_encode(room)}/tasks")).json()
        assert [task["room_id"] for task in page["items"]] == [room]
        url = f"{V1}/rooms/{percent_encode(room)}/jobs/{percent_encode(f'{room}:modifiers:X')}"
        assert (await client.get(url)).status_code == 200, room


async def test_a_room_with_reserved_characters_is_refused(client: httpx.AsyncClient) -> None:
    """400 with the text of the contract, on every path of a room."""
    job = await register(client)
    for text in ("a@b", "@", "@Global", "a:b", ":", "@internal:x", "@global "):
        url = f"{V1}/rooms/{percent_encode(text)}"
        responses = [
            await client.get(f"{url}/jobs"),
            await client.get(f"{url}/jobs/{job['full_name']}"),
            await client.get(f"{url}/jobs/{job['full_name']}/tasks"),
            await client.get(f"{url}/tasks"),
            await client.get(f"{url}/workers"),
            await client.put(f"{url}/jobs", json={"category": "modifiers", "name": "Rotate"}),
            await client.post(f"{url}/tasks/{job['full_name']}", json={}),
        ]
        for response in responses:
            body = expect_problem(response, 400, "invalid-room-id")
            assert body["detail"] == f"Room ID '{text}' contains invalid characters (@ or :)"


def paths_with(part: str, job: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the method and the path of every place where `part` may occur."""
    full, worker, name = job["full_name"], job["worker_id"], f"lab:modifiers:{part}"
    return [
        ("PUT", f"/rooms/{part}/jobs"),
        ("GET", f"/rooms/{part}/jobs"),
        ("GET", f"/rooms/{part}/jobs/{full}"),
        ("GET", f"/rooms/{part}/tasks"),
        ("GET", f"/rooms/{part}/workers"),
        ("POST", f"/rooms/{part}/tasks/{full}"),
        ("GET", f"/rooms/lab/jobs/{name}"),
        ("GET", f"/rooms/lab/jobs/{part}:modifiers:X"),
        ("GET", f"/rooms/lab/jobs/lab:{part}:X/tasks"),
        ("POST", f"/rooms/lab/tasks/{name}"),
        ("POST", f"/rooms/lab/tasks/{part}"),
        ("DELETE", f"/workers/{worker}/jobs/{name}"),
        ("DELETE", f"/workers/{part}/jobs/{full}"),
        ("PATCH", f"/workers/{part}"),
        ("DELETE", f"/workers/{part}"),
        ("GET", f"/tasks/{part}"),
        ("PATCH", f"/tasks/{part}"),
        ("GET", f"/rooms/lab/tasks?status={part}x"),
        ("GET", f"/rooms/lab/jobs/{full}/tasks?status={part}x"),
        ("GET", f"/rooms/lab/jobs?limit={part}x"),
    ]


BODY = {"category": "modifiers", "name": "X", "status": "cancelled"}


@on_both
async def test_hostile_text_in_a_path_is_a_client_error(client: httpx.AsyncClient) -> None:
    """Control characters, NUL, 129 characters, slashes, empty text: a 4xx problem, never 500."""
    job = await register(client)
    task = await submit(client, job)
    for text in ["", *NASTY, "\x00" * 2000, "a" * 20_000]:
        for method, url in paths_with(percent_encode(text), job):
            if (method, url) == ("GET", "/tasks/"):  # it leads to the search
                continue
            expect_client_error(await client.request(method, V1 + url, json=BODY, follow_redirects=True))
    assert (await get_task(client, task))["status"] == "pending"
    assert (await client.get(f"{V1}/rooms/lab/jobs")).json()["total"] == 1


@on_both
async def test_a_path_that_is_not_utf_8_is_no_server_error(client: httpx.AsyncClient) -> None:
    """Invalid bytes never cause a 500."""
    job = await register(client)
    for part in ("%ff", "a%c0%80", "%ed%a0%80", "%00%ff"):
        for method, url in paths_with(part, job):
            response = await client.request(method, V1 + url, json=BODY, follow_redirects=True)
            assert response.status_code < 500, url


@on_both
async def test_hostile_text_in_a_body_is_refused_or_kept(client: httpx.AsyncClient) -> None:
    """Invalid ids are 422; payload, schema and result may contain any text."""
    strings = [*NASTY, "", "\ud7ff", "\U0010ffff", "'; DROP TABLE joblib_task; --", "%s {0} :name $1"]
    for text in strings:
        for method, url, body in (
            ("PUT", "/rooms/lab/jobs", {"category": "modifiers", "name": "X", "worker_id": text}),
            ("POST", "/tasks/claim", {"worker_id": text}),
            ("PATCH", f"/tasks/{text.encode().hex()}", {"status": text}),
        ):
            expect_client_error(await client.request(method, V1 + url, json=body, follow_redirects=True))
    data = {text: [text, {text: text}] for text in strings}
    job = await register(client, schema={"title": "x", "default": data, "description": "\x00"})
    assert job["schema"] == {"title": "x", "default": data, "description": "\x00"}
    task = await submit(client, job, **{"data": data, "\x00": 1})
    claimed = (await client.post(f"{V1}/tasks/claim", json={"worker_id": job["worker_id"]})).json()["task"]
    assert claimed["payload"] == task["payload"] == {"data": data, "\x00": 1}
    await report(client, task, "running")
    done = (await report(client, task, "completed", result=data)).json()
    assert done["result"] == data
    assert await get_task(client, task) == done


async def test_hostile_headers_are_ignored(client: httpx.AsyncClient) -> None:
    """An invalid header has the same effect as no header."""
    task = await submit(client, await register(client))
    for value in (b"wait=\xff", b"\xe9" * 100, b"wait=\xb2", b";;;,,,===", b"wait=3" * 2000):
        response = await client.get(f"{V1}/tasks/{task['id']}", headers={"Prefer": value})
        assert (response.status_code, response.json()) == (200, task)
