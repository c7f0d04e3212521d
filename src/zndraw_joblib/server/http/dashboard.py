"""The operators' page: static files without data, and a configuration that says where the API is."""

from importlib.metadata import version
from pathlib import Path
from typing import Literal

from fastapi import FastAPI, Request, Response
from pydantic import BaseModel
from starlette.responses import RedirectResponse

from zndraw_joblib.contract.problems import NotFound
from zndraw_joblib.server.http.static_files import StaticFile, file_response, static_file
from zndraw_joblib.server.problem_responses import problem_response

FOLDER = Path(__file__).parents[1] / "dashboard"
# Nothing inline, nothing from elsewhere, and no page may show this one in a frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}


class Config(BaseModel):
    """What the page reads first: `api` is a URL relative to the page, so any prefix and proxy works.

    With the identity `token` the page asks for a bearer token; with `host` it sends the host's cookies, and
    the headers that the module at the URL `headers` returns.
    """

    api: str
    identity: Literal["token", "host"]
    read_only: bool
    version: str
    title: str
    headers: str | None = None


class Dashboard:
    """The files of the page below a path of an app, with headers that permit only the page's own code."""

    def __init__(
        self, path: str, *, is_host: bool, read_only: bool, headers: str | None = None, prefix: str = ""
    ) -> None:
        self.path, self._prefix = _checked(path), prefix
        depth = self.path.count("/")
        config = Config(
            api="../" * depth + f"{prefix}/v1/joblib".lstrip("/"),
            identity="host" if is_host else "token",
            read_only=read_only,
            version=version("zndraw-joblib"),
            title="zndraw-joblib",
            headers=headers,
        )
        self._config = static_file("config.json", config.model_dump_json().encode())
        self._files = _read_files()

    def add_to(self, app: FastAPI) -> None:
        """Add the routes of the page to an app. They are not in its OpenAPI document."""
        for path, endpoint in {
            f"{self.path}/": self._index,
            f"{self.path}/config.json": self._get_config,
            f"{self.path}/static/{{name:path}}": self._static,
        }.items():
            app.add_route(path, endpoint, methods=["GET"], include_in_schema=False)
        if self.path:
            app.add_route(self.path, self._redirect, methods=["GET"], include_in_schema=False)

    async def _redirect(self, _: Request) -> Response:
        # Relative, so that it stays below the prefix of a reverse proxy.
        return RedirectResponse(f"{self.path.rpartition('/')[2]}/", 308)

    async def _index(self, request: Request) -> Response:
        return file_response(request, self._files["index.html"], _HEADERS)

    async def _get_config(self, request: Request) -> Response:
        return file_response(request, self._config, _HEADERS)

    async def _static(self, request: Request) -> Response:
        name = f"static/{request.path_params['name']}"
        if name not in self._files:
            return problem_response(NotFound(f"The page has no file {name!r}"), self._prefix)
        return file_response(request, self._files[name], _HEADERS)


def _checked(path: str) -> str:
    """Return the path without a slash at its end. Raises ValueError unless it begins with a slash."""
    if not path.startswith("/") or "{" in path or "//" in path:
        raise ValueError(f"dashboard={path!r} is no path: pass one that begins with a slash, as '/queue'")
    return path.rstrip("/")


def _read_files() -> dict[str, StaticFile]:
    shown = {".html", ".js", ".css", ".svg"}
    paths = [path for path in FOLDER.rglob("*") if path.suffix in shown]
    names = (path.relative_to(FOLDER).as_posix() for path in paths)
    return {name: static_file(name, path.read_bytes()) for name, path in zip(names, paths, strict=True)}
