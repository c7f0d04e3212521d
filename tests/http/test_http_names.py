"""Names that nobody should send: every place where a client can put one, and what may stand there."""

import unicodedata
from typing import Any
from urllib.parse import quote

import httpx
from databases import on_sqlite
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


def spell(text: str) -> str:
    """Percent-encode everything, slashes too."""
    return quote(text, safe="")


def refused(answer: httpx.Response) -> None:
    """Expect any problem that is the client's fault."""
    assert 400 <= answer.status_code < 500, (answer.request.url, answer.text)
    assert answer.headers["content-type"] == "application/problem+json", answer.request.url


@on_sqlite
async def test_a_job_has_a_sane_name_or_none(client: httpx.AsyncClient) -> None:
    """Registering anything else as name or category is 422, and leaves nothing behind."""
    for text in NO_NAMES:
        for body in ({"category": "modifiers", "name": text}, {"category": text, "name": "Rotate"}):
            expect_problem(await client.put(f"{V1}/rooms/lab/jobs", json=body), 422, "invalid-request")
    assert (await client.get(f"{V1}/rooms/lab/jobs")).json()["total"] == 0
    assert (await client.get(f"{V1}/workers")).json()["total"] == 0


async def test_a_job_is_found_under_every_name_it_may_have(client: httpx.AsyncClient) -> None:
    """What can be registered can be shown, called and listed, with the same characters."""
    combined = unicodedata.normalize("NFD", "é")
    for name in [*NAMES, combined, "क्षि", "a\u200db"]:
        body = {"category": "modifiers", "name": name}
        answer = await client.put(f"{V1}/rooms/lab/jobs", json=body)
        if name not in NAMES and answer.status_code == 422:
            continue
        assert answer.status_code == 201, name
        job = answer.json()
        assert job["name"] == name
        shown = await client.get(f"{V1}/rooms/lab/jobs/{spell(job['full_name'])}")
        assert shown.json() == {**job, "worker_id": None}, name
        assert (await submit(client, job))["job_name"] == job["full_name"]
        url = f"{V1}/workers/{job['worker_id']}/jobs/{spell(job['full_name'])}"
        assert (await client.delete(url)).status_code == 204


async def test_rooms_may_be_called_almost_anything(client: httpx.AsyncClient) -> None:
    """1-128 printable characters without `@`, `:` and `/`; each is a room of its own."""
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
        answer = await client.post(f"{V1}/rooms/{spell(room)}/tasks/{spell(job['full_name'])}", json={})
        assert (answer.status_code, answer.json().get("room_id")) == (202, room)
        own = await client.put(f"{V1}/rooms/{spell(room)}/jobs", json={"category": "modifiers", "name": "X"})
        assert own.json()["full_name"] == f"{room}:modifiers:X"
    for room in rooms:
        page = (await client.get(f"{V1}/rooms/{spell(room)}/tasks")).json()
        assert [task["room_id"] for task in page["items"]] == [room]
        url = f"{V1}/rooms/{spell(room)}/jobs/{spell(f'{room}:modifiers:X')}"
        assert (await client.get(url)).status_code == 200, room


@on_sqlite
async def test_a_room_with_reserved_characters_is_refused(client: httpx.AsyncClient) -> None:
    """400 with the pinned sentence, on every address of a room."""
    job = await register(client)
    for text in ("a@b", "@", "@Global", "a:b", ":", "@internal:x", "@global "):
        url = f"{V1}/rooms/{spell(text)}"
        answers = [
            await client.get(f"{url}/jobs"),
            await client.get(f"{url}/jobs/{job['full_name']}"),
            await client.get(f"{url}/jobs/{job['full_name']}/tasks"),
            await client.get(f"{url}/tasks"),
            await client.get(f"{url}/workers"),
            await client.put(f"{url}/jobs", json={"category": "modifiers", "name": "Rotate"}),
            await client.post(f"{url}/tasks/{job['full_name']}", json={}),
        ]
        for answer in answers:
            body = expect_problem(answer, 400, "invalid-room-id")
            assert body["detail"] == f"Room ID '{text}' contains invalid characters (@ or :)"


def addresses(part: str, job: dict[str, Any]) -> list[tuple[str, str]]:
    """Return method and address of every place in an address where `part` may stand."""
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


async def test_hostile_text_in_an_address_is_the_clients_fault(client: httpx.AsyncClient) -> None:
    """Control characters, NUL, 129 characters, slashes, no text at all: 4xx as a problem, never 500."""
    job = await register(client)
    task = await submit(client, job)
    for text in ["", *NASTY, "\x00" * 2000, "a" * 20_000]:
        for method, url in addresses(spell(text), job):
            refused(await client.request(method, V1 + url, json=BODY, follow_redirects=True))
    assert (await get_task(client, task))["status"] == "pending"
    assert (await client.get(f"{V1}/rooms/lab/jobs")).json()["total"] == 1


async def test_an_address_that_is_no_utf_8_breaks_nothing(client: httpx.AsyncClient) -> None:
    """Bytes that are no text never lead to a 500."""
    job = await register(client)
    for part in ("%ff", "a%c0%80", "%ed%a0%80", "%00%ff"):
        for method, url in addresses(part, job):
            answer = await client.request(method, V1 + url, json=BODY, follow_redirects=True)
            assert answer.status_code < 500, url


async def test_hostile_text_in_a_body_is_refused_or_kept_as_it_is(client: httpx.AsyncClient) -> None:
    """Ids that are none are 422; in payload, schema and result any text is data, NUL and all."""
    strings = [*NASTY, "", "\ud7ff", "\U0010ffff", "'; DROP TABLE joblib_task; --", "%s {0} :name $1"]
    for text in strings:
        for method, url, body in (
            ("PUT", "/rooms/lab/jobs", {"category": "modifiers", "name": "X", "worker_id": text}),
            ("POST", "/tasks/claim", {"worker_id": text}),
            ("PATCH", f"/tasks/{text.encode().hex()}", {"status": text}),
        ):
            refused(await client.request(method, V1 + url, json=body))
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


@on_sqlite
async def test_hostile_headers_are_ignored(client: httpx.AsyncClient) -> None:
    """A header that says nothing sensible is as good as none."""
    task = await submit(client, await register(client))
    for value in (b"wait=\xff", b"\xe9" * 100, b"wait=\xb2", b";;;,,,===", b"wait=3" * 2000):
        answer = await client.get(f"{V1}/tasks/{task['id']}", headers={"Prefer": value})
        assert (answer.status_code, answer.json()) == (200, task)
