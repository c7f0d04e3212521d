"""The command mcp, used by the client of the protocol's package."""

import json
import re
import sys
from contextlib import AbstractAsyncContextManager
from typing import Any
from uuid import uuid4

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from cli.conftest import Stack
from cli.program import Program
from zndraw_joblib.cli import mcp
from zndraw_joblib.cli.display import CommandError
from zndraw_joblib.cli.mcp import CONFIRMATION_SECONDS, MAX_CHARACTERS, MAX_CONFIRMATIONS

READS = {
    *("overview", "list_jobs", "show_job", "find_tasks", "show_task", "task_history", "task_log"),
    *("explain_task", "list_workers", "list_failures"),
}
CHANGES = {"preview_submit", "preview_change", "confirm"}


def agent(program: Program, *options: str, **env: str) -> Client:
    """Return a client that starts the command in a process of its own."""
    arguments = ["-m", "zndraw_joblib", "mcp", *options]
    server = StdioServerParameters(command=sys.executable, args=arguments, env={**program.env, **env})
    transport: AbstractAsyncContextManager[Any] = stdio_client(server)
    return Client(transport)


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


async def test_a_change_needs_the_confirmation_of_its_preview(stack: Stack) -> None:
    """A preview changes nothing; a confirmation applies what it belongs to, once."""
    room = f"mcp-{uuid4().hex[:8]}"
    async with agent(stack.program, "--changes") as client:
        tools = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}
        assert set(tools) == READS | CHANGES
        writers = {name for name, hints in tools.items() if hints is None or not hints.read_only_hint}
        assert writers == {"confirm"}
        shown = await call(client, "preview_submit", job="Fail", payload={}, room=room)
        assert shown["would_submit"] == {"job": "@global:modifiers:Fail", "room": room, "payload": {}}
        assert (await call(client, "find_tasks", room=room))["tasks"] == []
        submitted = await call(client, "confirm", confirmation=shown["confirmation"])
        task = stack.client.wait_for(submitted["id"], 60)
        assert (task.room_id, task.status) == (room, "failed")
        assert "no change with this confirmation" in await refusal(
            client, "confirm", confirmation=shown["confirmation"]
        )
        preview = await call(client, "preview_change", action="retry", room=room, status="failed")
        assert (preview["count"], [one["id"] for one in preview["examples"]]) == (1, [str(task.id)])
        assert "token" not in preview
        assert stack.client.get_task(task.id).status == "failed"
        done = await call(client, "confirm", confirmation=preview["confirmation"])
        assert done["affected"] == 1
        assert stack.client.history(task.id).transitions[-1].status != "failed" or (
            stack.client.get_task(task.id).attempt == 2
        )
        assert "none of cancel, retry, release" in await refusal(
            client, "preview_change", action="purge", room=room
        )


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
        assert "Not authorized" in await refusal(client, "confirm", confirmation=shown["confirmation"])
        assert viewer not in await refusal(client, "show_task", task="0" * 36)
    async with agent(stack.program, ZNDRAW_JOBLIB_TOKEN="zj_wrong") as client:
        text = await refusal(client, "list_jobs")
    assert "The bearer token is unknown" in text
    assert "zj_wrong" not in text


def test_confirmations_and_long_values_are_bounded() -> None:
    """The newest 100 wait, for five minutes; a value is cut after 20,000 characters."""
    now = [0.0]
    confirmations = mcp.Confirmations(lambda: now[0])
    first, *_, last = [confirmations.add(lambda _: "done") for _ in range(MAX_CONFIRMATIONS + 1)]
    with pytest.raises(CommandError, match="no change"):
        confirmations.take(first)
    assert confirmations.take(last)(None) == "done"  # type: ignore[arg-type]
    old = confirmations.add(lambda _: "done")
    now[0] += CONFIRMATION_SECONDS + 1
    with pytest.raises(CommandError, match="older than 5 minutes"):
        confirmations.take(old)
    assert mcp.shown({"a": 1}) == {"a": 1}
    cut = mcp.shown({"a": "x" * MAX_CHARACTERS})
    assert len(cut["begins"]) == MAX_CHARACTERS < cut["characters"]


def test_without_its_package_the_command_names_the_extra(program: Program) -> None:
    """The extra `mcp` is not installed where nothing needs it."""
    [refused] = program.run_all([["mcp"]], hidden=["mcp"])
    assert refused.is_error_line
    assert re.search(r"pip install 'zndraw-joblib\[mcp\]'", refused.err)
