"""Count the shape of the code: files, rooms, arrows, names, and what one request runs through.

Run it with ``python -m generate.shape``; ``--files`` lists the files of the requests. It changes nothing.
"""

import ast
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr

PACKAGE = Path(__file__).parents[1] / "src" / "zndraw_joblib"
_NAME = "zndraw_joblib"
# Participles and pronouns that any function could use as a name.
_PARTICIPLES = frozenset(
    [
        "found",
        "given",
        "each",
        "wanted",
        "known",
        "most",
        "done",
        "left",
        "kept",
        "chosen",
        "got",
        "made",
        "taken",
        "used",
    ]
)


def main() -> None:
    """Print the figures."""
    paths = sorted(PACKAGE.rglob("*.py"))
    trees = {path: ast.parse(path.read_text()) for path in paths}
    lines = sum(len(path.read_text().splitlines()) for path in paths)
    print(f"{len(paths)} files, {lines:,} lines")
    arrows = rooms_and_arrows(trees)
    rooms = {room_of(module_of(path)) for path in paths}
    print(f"{len(rooms)} packages and top modules, {len(arrows)} import arrows between them")
    names = Counter(name for tree in trees.values() for name in bound_names(tree))
    participles = sum(names[name] for name in _PARTICIPLES)
    print(f"{participles:,} of {names.total():,} names are participles ({participles / names.total():.1%})")
    for operation, (files, calls) in asyncio.run(traced()).items():
        print(f"{operation}: {len(files)} files, {calls} calls")
        if "--files" in sys.argv:
            print(*(f"  {name}" for name in sorted(files)), sep="\n")


def module_of(path: Path) -> str:
    """Return the dotted name of a module below the package, '' for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """Return the room of a module: the package that holds it, or the module itself at the top."""
    if (PACKAGE / module.replace(".", "/")).is_dir():
        return module
    return module.rpartition(".")[0] or module


def rooms_and_arrows(trees: dict[Path, ast.Module]) -> set[tuple[str, str]]:
    """Return the imports between rooms, also those in functions and for type checkers."""
    return {
        (source, target)
        for path, tree in trees.items()
        for source in [room_of(module_of(path))]
        for name in imported(tree)
        if (target := room_of(name)) != source
    }


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the modules of the package that a module imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, *parts = name.split(".")
            while first == _NAME and parts and not is_module(parts):
                parts.pop()
            if first == _NAME:
                yield ".".join(parts)


def is_module(parts: list[str]) -> bool:
    """Return whether the parts of a dotted name are a module or a package."""
    path = PACKAGE.joinpath(*parts)
    return path.is_dir() or path.with_suffix(".py").is_file()


def bound_names(tree: ast.Module) -> Iterator[str]:
    """Yield each name where it is bound: not in comprehensions."""
    short = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    skipped = {
        id(name)
        for node in ast.walk(tree)
        if isinstance(node, short)
        for generator in node.generators
        for name in ast.walk(generator.target)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in skipped:
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name


async def traced() -> dict[str, tuple[set[str], int]]:
    """Return the files and the number of calls of functions of this package in a submit, claim and report."""
    from zndraw_joblib.server.db.engine import open_database  # noqa: PLC0415
    from zndraw_joblib.server.db.schema import upgrade  # noqa: PLC0415
    from zndraw_joblib.server.host.app import create_app  # noqa: PLC0415 - loads the server
    from zndraw_joblib.server.process.settings import ServerSettings  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        token = "0" * 32
        settings = ServerSettings(database_url=f"sqlite:///{folder}/queue.db", admin_token=SecretStr(token))
        database = open_database(settings.database_url)
        await upgrade(database)
        await database.close()
        app = create_app(settings)
        async with app.router.lifespan_context(app):
            traced_app = TracedApp(app)
            client = httpx.AsyncClient(
                transport=httpx.ASGITransport(traced_app),
                base_url="http://test/v1/joblib",
                headers={"Authorization": f"Bearer {token}"},
            )
            return await _measured(client, traced_app)


class TracedApp:
    """An app. While `is_on`, it records the files and calls of this package that its requests run through."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.is_on = False
        self.files: set[str] = set()
        self.calls = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request."""
        if self.is_on:
            sys.setprofile(self._record)
        try:
            await self._app(scope, receive, send)
            # What the request left to do, like publishing its events, belongs to it.
            await asyncio.sleep(0)
        finally:
            sys.setprofile(None)

    def _record(self, frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            self.files.add(frame.f_code.co_filename.removeprefix(f"{PACKAGE}/"))
            self.calls += 1


async def _measured(client: httpx.AsyncClient, app: TracedApp) -> dict[str, tuple[set[str], int]]:
    job = {"category": "modifiers", "name": "echo", "schema": {"type": "object"}}
    worker = (await client.put("/rooms/room/jobs", json=job)).json()["worker_id"]

    async def submit() -> Any:
        return await client.post("/rooms/room/tasks/room:modifiers:echo", json={"payload": {"x": 1}})

    async def claim() -> Any:
        return await client.post("/tasks/claim", json={"worker_id": worker})

    async def start() -> Callable[[], Awaitable[httpx.Response]]:
        task = (await claim()).json()["task"]
        path, body = f"/tasks/{task['id']}", {"worker_id": worker, "attempt": task["attempt"]}
        await client.patch(path, json=body | {"status": "running"})
        return lambda: client.patch(path, json=body | {"status": "completed"})

    for _ in range(3):  # what a first request compiles and caches is not counted
        await submit()
        await (await start())()
    counts = {"submit": await _profiled(app, submit)}
    counts["claim"] = await _profiled(app, claim)
    await submit()
    counts["report"] = await _profiled(app, await start())
    return counts


async def _profiled(app: TracedApp, work: Callable[[], Awaitable[httpx.Response]]) -> tuple[set[str], int]:
    app.is_on, app.files, app.calls = True, set(), 0
    response = await work()
    app.is_on = False
    if response.is_error:
        raise RuntimeError(response.text)
    return app.files, app.calls


if __name__ == "__main__":
    main()
