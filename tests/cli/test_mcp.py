"""The command mcp, used by the client of the protocol's package."""

import json
import re
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID, uuid4

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from servers import free_port

from cli.conftest import Stack
from cli.program import Program, RunningServer
from zndraw_joblib import Category, ClaimedTask, Extension, JobWorker
from zndraw_joblib.cli import mcp
from zndraw_joblib.cli.display import CommandError
from zndraw_joblib.cli.mcp import CONFIRMATION_SECONDS, MAX_CHARACTERS, MAX_CONFIRMATIONS

READS = {
    *("overview", "list_jobs", "show_job", "find_tasks", "show_task", "task_history", "task_log"),
    *("explain_task", "list_workers", "list_failures"),
}
NIL = UUID(int=0)
CHANGES = {"preview_submit", "preview_change", "confirm"}


class Talk(Extension):
    """Log lines."""

    category: ClassVar[Category] = Category.ANALYSIS
    lines: int = 1
    text: str = ""

    def run(self, vis: Any, task: ClaimedTask) -> None:
        """Log so many lines."""
        for number in range(self.lines):
            task.log(f"line {number} " + "x" * 100)


def agent(program: Program, *options: str, **env: str) -> Client:
    """Return a client that starts the command in a process of its own."""
    arguments = ["-m", "zndraw_joblib", "mcp", *options]
    server = StdioServerParameters(command=sys.executable, args=arguments, env={**program.env, **env})
    transport: AbstractAsyncContextManager[Any] = stdio_client(server)
    return Client(transport)


def only(preview: dict[str, Any]) -> dict[str, str]:
    """Return what confirms a preview."""
    return {name: preview[name] for name in ("change", "confirmation")}


async def call(client: Client, tool: str, **arguments: Any) -> Any:
    """Return what a tool returns."""
    result = await client.call_tool(tool, arguments)
    [content] = result.content
    assert not result.is_error, content
    return json.loads(content.text)


async def refusal(client: Client, tool: str, **arguments: Any) -> str:
    """Return the text of the error of a tool."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return str(result.content[0].text)


async def test_an_agent_sees_jobs_and_workers_and_changes_nothing(stack: Stack) -> None:
    """Without `--changes` there is no tool that changes; errors say what is wrong."""
    async with agent(stack.program) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == READS
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools.values())
        assert all(tool.description for tool in tools.values())
        jobs = (await call(client, "list_jobs"))["jobs"]
        assert {job["name"] for job in jobs} >= {"Show", "Fail", "Picky", "Twin"}
        picky = await call(client, "show_job", job="Picky", room="lab")
        assert picky["schema"]["required"] == ["number"]
        assert (await call(client, "list_workers"))["items"]
        assert "findings" in await call(client, "overview", room="lab")
        assert "findings" in await call(client, "overview")
        text = await refusal(client, "show_job", job="Pick", room="lab")
        assert "Did you mean @global:modifiers:Picky?" in text
        assert "status.0: Input should be" in await refusal(client, "find_tasks", status="done")
        assert (await client.call_tool("confirm", {"confirmation": "x"})).is_error


async def test_an_agent_finds_a_failed_task_and_its_reasons(stack: Stack) -> None:
    """By a search, and by the beginning of its id."""
    room = f"mcp-{uuid4().hex[:8]}"
    task = stack.program.ok("submit", "Fail", "--room", room).strip()
    stack.client.wait_for(task, 60)
    async with agent(stack.program) as client:
        found = await call(client, "find_tasks", room=room, status="failed", job="Fail", text="it broke")
        assert [one["id"] for one in found["tasks"]] == [task]
        assert (await call(client, "show_task", task=task[:13]))["error_code"] == "error"
        history = await call(client, "task_history", task=task)
        assert [change["status"] for change in history["transitions"]][-1] == "failed"
        assert (await call(client, "explain_task", task=task))["reasons"]
        assert (await call(client, "list_failures", room=room))["groups"][0]["exception"] == "RuntimeError"
        assert (await call(client, "task_log", task=task))["lines"] == []


async def test_long_answers_are_cut(stack: Stack) -> None:
    """Lists by their limit, a log at its beginning, a result as a text."""
    room = f"mcp-{uuid4().hex[:8]}"
    with stack.server.connect() as connection, JobWorker(connection) as manager:
        manager.register(Talk, room=room)
        few, many = (manager.submit(Talk(lines=lines), room=room) for lines in (30, 300))
        assert {manager.wait_for(task, 60).status for task in (few, many)} == {"completed"}
    large = stack.client.submit("@global:analysis:Show", {"value": "x" * MAX_CHARACTERS}, room=room)
    stack.client.wait_for(large, 60)
    async with agent(stack.program) as client:
        log = await call(client, "task_log", task=few, lines=5)
        assert [line["text"].split()[1] for line in log["lines"]] == ["25", "26", "27", "28", "29"]
        log = await call(client, "task_log", task=many, lines=300)
        assert log["lines"][-1]["text"].startswith("line 299 ")
        assert len(log["lines"]) + log["left_out"] == 300
        assert 0.9 * MAX_CHARACTERS < len(json.dumps(log)) <= MAX_CHARACTERS
        found = await call(client, "find_tasks", room=room, limit=1)
        assert ([one["id"] for one in found["tasks"]], found["there_may_be_more"]) == ([large], True)
        shown = await call(client, "show_task", task=large)
        assert len(shown["begins"]) == MAX_CHARACTERS < shown["characters"]


async def test_a_change_needs_the_confirmation_of_its_preview(stack: Stack) -> None:
    """A preview changes nothing; a confirmation applies what it belongs to, once."""
    room = f"mcp-{uuid4().hex[:8]}"
    async with agent(stack.program, "--changes") as client:
        tools = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
        assert set(tools) == READS | CHANGES
        writers = {name for name, hints in tools.items() if hints is None or not hints.read_only_hint}
        assert writers == {"confirm"}
        shown = await call(client, "preview_submit", job="Fail", payload={}, room=room)
        assert shown.pop("payload") == {}
        assert shown["change"] == f"submit a task of @global:modifiers:Fail to room {room}"
        assert (await call(client, "find_tasks", room=room))["tasks"] == []
        assert "is for another one, 'submit a task" in await refusal(
            client, "confirm", **{**shown, "change": "retry 1 tasks"}
        )
        submitted = await call(client, "confirm", **shown)
        task = stack.client.wait_for(submitted["id"], 60)
        assert (task.room_id, task.status) == (room, "failed")
        assert "no change with this confirmation" in await refusal(client, "confirm", **shown)
        assert "none of cancel, retry, release" in await refusal(
            client, "preview_change", action="purge", room=room
        )


async def test_what_is_confirmed_is_not_more_than_what_was_previewed(stack: Stack) -> None:
    """Tasks that match since the preview need another one."""
    room = f"mcp-{uuid4().hex[:8]}"
    first = stack.program.ok("submit", "Fail", "--room", room).strip()
    stack.client.wait_for(first, 60)
    async with agent(stack.program, "--changes") as client:
        preview = await call(client, "preview_change", action="retry", room=room, status="failed")
        assert (preview["count"], [one["id"] for one in preview["examples"]]) == (1, [first])
        assert "token" not in preview
        assert preview["change"] == f'retry 1 tasks with status="failed" room="{room}"'
        assert stack.client.get_task(first).status == "failed"
        second = stack.program.ok("submit", "Fail", "--room", room).strip()
        stack.client.wait_for(second, 60)
        assert "2 tasks match by now, and 1 were previewed" in await refusal(
            client, "confirm", **only(preview)
        )
        preview = await call(client, "preview_change", action="retry", room=room, status="failed")
        assert (await call(client, "confirm", **only(preview)))["affected"] == 2
        assert "no change with this confirmation" in await refusal(client, "confirm", **only(preview))
    assert [stack.client.wait_for(task, 60).attempts for task in (first, second)] == [2, 2]


async def test_an_agent_has_the_rights_of_its_token(stack: Stack) -> None:
    """A viewer of one room reads it alone, and cannot submit; a wrong token is an error with a remedy."""
    room = f"mcp-{uuid4().hex[:8]}"
    viewer = stack.program.ok("token", "create", room, "--role", "viewer", "--rooms", room).strip()
    async with agent(stack.program, "--changes", ZNDRAW_JOBLIB_TOKEN=viewer) as client:
        assert (await call(client, "find_tasks", room=room))["tasks"] == []
        assert "Not authorized" in await refusal(client, "find_tasks", room="another")
        assert "needs the scope operate" in await refusal(client, "overview")
        assert (await call(client, "show_job", job="Show", room=room))["name"] == "Show"
        shown = await call(client, "preview_submit", job="Show", payload={}, room=room)
        del shown["payload"]
        assert "Not authorized" in await refusal(client, "confirm", **shown)
        assert f"Task {NIL} not found" in await refusal(client, "show_task", task=str(NIL))
    async with agent(stack.program, ZNDRAW_JOBLIB_TOKEN="zj_wrong") as client:
        text = await refusal(client, "list_jobs")
    assert "The bearer token is unknown" in text
    assert "zj_wrong" not in text


async def test_a_change_that_did_not_reach_the_server_is_confirmed_again(
    program: Program, tmp_path: Path
) -> None:
    """The error names the cause, and the second confirmation submits one task, with a long payload."""
    server = RunningServer(program, port=free_port())
    program.env["ZNDRAW_JOBLIB_URL"] = server.url
    with server.connect() as connection, JobWorker(connection) as manager:
        manager.register(Talk, room="lab", without_workers="queue")
    async with agent(program, "--changes", ZNDRAW_JOBLIB_TOKEN=server.token or "") as client:
        payload = {"lines": 0, "text": "x" * MAX_CHARACTERS}
        shown = await call(client, "preview_submit", job="lab:analysis:Talk", payload=payload, room="lab")
        assert shown.pop("payload")["characters"] > MAX_CHARACTERS
        server.stop()
        text = await refusal(client, "confirm", **shown)
        assert f"The server at {server.url} cannot be reached" in text
        server = RunningServer(program, port=server.port)
        submitted = await call(client, "confirm", **shown)
        found = await call(client, "find_tasks", room="lab")
        assert submitted["characters"] > MAX_CHARACTERS
        assert str(found).count("created_by") == 1
    server.stop()


def test_confirmations_and_long_values_are_bounded() -> None:
    """The newest 100 wait, for five minutes, and are used once; long lists lose items, and say so."""
    now = [0.0]
    confirmations = mcp.Confirmations(lambda: now[0])
    first, *_, last = [confirmations.add("a", lambda _, __: "done") for _ in range(MAX_CONFIRMATIONS + 1)]
    with pytest.raises(CommandError, match="no change"), confirmations.take(**first):
        pass
    with pytest.raises(ZeroDivisionError), confirmations.take(**last):
        raise ZeroDivisionError
    with confirmations.take(**last) as apply:
        assert apply(None, "") == "done"  # type: ignore[arg-type]
    with pytest.raises(CommandError, match="no change"), confirmations.take(**last):
        pass
    old = confirmations.add("a", lambda _, __: "done")
    now[0] += CONFIRMATION_SECONDS + 1
    with pytest.raises(CommandError, match="older than 5 minutes"), confirmations.take(**old):
        pass
    assert mcp.shown({"a": 1}) == {"a": 1}
    cut = mcp.shown({"a": "x" * MAX_CHARACTERS, "b": [1]})
    assert len(cut["begins"]) == MAX_CHARACTERS < cut["characters"]
    items = mcp.shown({"items": [{"name": f"{number:5}"} for number in range(5000)], "total": 5000})
    assert (items["items"][0]["name"], items["total"]) == ("    0", 5000)
    assert len(items["items"]) + items["left_out"] == 5000


def test_without_its_package_the_command_names_the_extra(program: Program) -> None:
    """The extra `mcp` is not installed where nothing needs it."""
    [refused] = program.run_all([["mcp"]], hidden=["mcp"])
    assert refused.is_error_line
    assert re.search(r"pip install 'zndraw-joblib\[mcp\]'", refused.err)
