"""Pages and files without data: problem types, operations, TypeScript declarations, the operators' page."""

import gzip
import hashlib
import inspect
import mimetypes
from collections.abc import Awaitable, Callable
from functools import cache
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import quote, urlsplit

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, PlainTextResponse
from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from zndraw_joblib.server.http.openapi import operation_id, problem_responses, tag_of
from zndraw_joblib.server.runtime.problem_responses import problem_exception_handler, problem_response
from zndraw_joblib.wire.operations import PREFIX
from zndraw_joblib.wire.problems import PROBLEMS, REMEDIES, NotFound, ProblemException

_KINDS = {"js": "text/javascript", "svg": "image/svg+xml", "ts": "application/typescript"}


class StaticFile(NamedTuple):
    """The content of a file, plain and compressed, its media type and its ETag."""

    content: bytes
    media_type: str
    etag: str
    gzipped: bytes


def static_file(name: str, content: bytes) -> StaticFile:
    """Return a file; its media type follows from its name."""
    kind = _KINDS.get(name.rpartition(".")[2]) or mimetypes.guess_type(name)[0] or "application/octet-stream"
    etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    return StaticFile(content, kind, etag, gzip.compress(content, mtime=0))


def file_response(
    request: Request, file: StaticFile, headers: dict[str, str], cache_control: str = "no-cache"
) -> Response:
    """Return a file, or 304 if the client has it already."""
    headers = {**headers, "Cache-Control": cache_control, "X-Content-Type-Options": "nosniff"}
    headers |= {"ETag": file.etag, "Vary": "Accept-Encoding"}
    etags = request.headers.get("if-none-match", "")
    if file.etag in {tag.strip().removeprefix("W/") for tag in etags.split(",")}:
        return Response(status_code=304, headers=headers)
    accepted = request.headers.get("accept-encoding", "").split(",")
    encodings = {part.partition(";")[0].strip() for part in accepted}
    if "gzip" not in encodings or len(file.gzipped) >= len(file.content):
        return Response(file.content, headers=headers, media_type=file.media_type)
    headers |= {"Content-Encoding": "gzip", "ETag": f"W/{file.etag}"}
    return Response(file.gzipped, headers=headers, media_type=file.media_type)


# TypeScript declarations of the API: files without data, so they need no identity.

TYPES = Path(__file__).parents[1] / "types"


def add_type_files(app: FastAPI, path: str, prefix: str = "") -> None:
    """Serve each file of the folder at ``{path}/types/{name}``, outside of the OpenAPI document.

    `prefix` is that of the queue.
    """
    files = _files()

    async def send(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files:
            missing = NotFound(f"There is no file {name!r}; there are {', '.join(sorted(files))}")
            return problem_response(missing, prefix)
        return file_response(request, files[name], {})

    app.add_route(f"{path}/types/{{name}}", send, methods=["GET"], include_in_schema=False)


@cache
def _files() -> dict[str, StaticFile]:
    return {path.name: static_file(path.name, path.read_bytes()) for path in TYPES.glob("*.d.ts")}


# The pages that explain problem types, and problem responses for a whole app.

_PATH = "/v1/problems/{problem_id}"
# Declared by hand: FastAPI would add a 422 of its own, though any text is valid.
_PROBLEM_ID = {
    "in": "path",
    "name": "problem_id",
    "required": True,
    "schema": {"type": "string"},
    "example": "task-not-found",
}


def add_problem_pages(app: FastAPI, namespace: str = "", prefix: str = "") -> None:
    """Add the pages to an app; `namespace` and `prefix` are those of the queue."""
    app.add_api_route(
        prefix + _PATH,
        _explain(prefix),
        response_class=PlainTextResponse,
        operation_id=operation_id("explain_problem", namespace),
        tags=[tag_of("problems", namespace)],
        responses=problem_responses((NotFound,)),
        # A page has no data, so it needs no identity.
        openapi_extra={"security": [], "parameters": [_PROBLEM_ID]},
    )


def _explain(prefix: str) -> Callable[[Request], Awaitable[Response]]:
    async def explain_problem(request: Request) -> Response:
        """Explain a problem type."""
        problem_id = request.path_params["problem_id"]
        cls = PROBLEMS.get(problem_id)
        if cls is None:
            return problem_response(NotFound(f"There is no problem type {problem_id!r}"), prefix)
        head = f"{cls.__name__} ({cls.status} {cls.title})"
        return PlainTextResponse(f"{head}\n\n{inspect.getdoc(cls)}\n\nWhat to do: {REMEDIES[cls]}\n")

    return explain_problem


def install_exception_handlers(app: FastAPI) -> None:
    """Answer every error of an app as a problem, also on its own routes."""
    for kind in (ProblemException, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, problem_exception_handler)


# The page `/docs` of the standalone server: its operations, without scripts.

# FastAPI's own page runs scripts of another site on the origin of the operators' page.
_OPERATIONS_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 1rem/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }}
table {{ border-collapse: collapse; }}
td {{ border-top: 1px solid #8886; padding: .25rem 1rem .25rem 0; vertical-align: top; }}
:root {{ color-scheme: light dark; }}
</style>
<h1>{title}</h1>
<p>The <a href="openapi.json">OpenAPI document</a> has the parameters, bodies and problems of each operation;
open it with any client or viewer.</p>
<table>
{rows}
</table>
"""


def add_operations_page(app: FastAPI) -> None:
    """Add the page to an app without one."""

    async def show_operations(_: Request) -> Response:
        rows = [
            f"<tr><td><code>{method.upper()}</code><td><code>{escape(path)}</code>"
            f"<td>{escape(operation.get('summary', ''))}"
            for path, operations in app.openapi()["paths"].items()
            for method, operation in operations.items()
        ]
        page = _PAGE.format(title=escape(f"{app.title} {app.version}"), rows="\n".join(rows))
        return HTMLResponse(page, headers=_OPERATIONS_HEADERS)

    app.add_route("/docs", show_operations, methods=["GET"], include_in_schema=False)


# The operators' page: static files without data, and a configuration that says where the API is.

DASHBOARD = Path(__file__).parents[1] / "dashboard"
# Nothing inline, nothing from elsewhere, and no page may show this one in a frame.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# Modules that few pages need.
_ON_DEMAND = {
    "static/vendor/uplot.js",
    "static/sso.js",
    *(f"static/pages/{name}.js" for name in ("atoms", "audit", "form", "groups", "limits", "providers")),
    *(f"static/pages/{name}.js" for name in ("schedules", "settings", "sweeper", "webhooks")),
}
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}


class SignIn(BaseModel):
    """How the page logs users in at an identity provider, by authorization code with PKCE (RFC 7636).

    `fault` says why that is not possible now; then the other fields are empty.
    """

    provider: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""
    client_id: str = ""
    scope: str = ""
    parameters: dict[str, str] = {}
    fault: str | None = None


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
    sign_in: SignIn | None = Field(default=None, exclude_if=lambda value: value is None)


class Dashboard:
    """The files of the page below a path of an app, with headers that permit only the page's own code."""

    def __init__(
        self,
        path: str,
        *,
        is_host: bool,
        read_only: bool,
        headers: str | None = None,
        prefix: str = "",
        find_sign_in: Callable[[], Awaitable[SignIn]] | None = None,
    ) -> None:
        self.path, self._prefix, self._is_host = checked_path("dashboard", path), prefix, is_host
        self._api = f"{prefix}/v1/"
        depth = self.path.count("/")
        # Relative to the URL of the queue, which ends with its prefix.
        self.url = f"./{'../' * prefix.count('/')}{self.path.lstrip('/')}/".replace("//", "/")
        self._config = Config(
            api="../" * depth + f"{prefix}{PREFIX}".lstrip("/"),
            identity="host" if is_host else "token",
            read_only=read_only,
            version=version("zndraw-joblib"),
            title="zndraw-joblib",
            headers=headers,
        )
        self._find_sign_in = find_sign_in
        self._config_file = static_file("config.json", self._config.model_dump_json().encode())
        self._headers = _HEADERS
        self._files, self._release = _read_files()

    def add_to(self, app: FastAPI) -> None:
        """Add the routes of the page to an app. They are not in its OpenAPI document."""
        for path, endpoint in {
            f"{self.path}/": self._index,
            f"{self.path}/config.json": self._get_config,
            f"{self.path}/t/{{task}}": self._show_task,
            f"{self.path}/static/{{name:path}}": self._static,
        }.items():
            app.add_route(path, endpoint, methods=["GET"], include_in_schema=False)
        if self.path:
            app.add_route(self.path, self._redirect, methods=["GET"], include_in_schema=False)
        if self.path or not self._is_host:
            app.router.default = self._or_page(app.router.default)

    async def _redirect(self, _: Request) -> Response:
        # Relative, so that it stays below the prefix of a reverse proxy.
        return RedirectResponse(f"{self.path.rpartition('/')[2]}/", 308)

    async def _show_task(self, request: Request) -> Response:
        """Redirect a short link, `t/ID`, to the page of a task; relative, as above."""
        return RedirectResponse(f"../#/tasks/{quote(request.path_params['task'], safe='')}", 302)

    def _or_page(self, not_found: ASGIApp) -> ASGIApp:
        """Return an app that sends browsers from paths below the page that no route has to the page."""

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            path = str(scope["path"]).removeprefix(scope.get("root_path", ""))
            rest = path.removeprefix(f"{self.path}/")
            is_below = rest != path and not path.startswith(self._api)
            is_read = scope["type"] == "http" and scope["method"] == "GET"
            if is_below and is_read and "text/html" in Headers(scope=scope).get("accept", ""):
                # Relative, as above, also from a path of several parts.
                up = "../" * rest.count("/") or "./"
                address = f"{up}#/{quote(rest.strip('/'), safe='/')}"
                await RedirectResponse(address, 302)(scope, receive, send)
                return
            await not_found(scope, receive, send)

        return answer

    async def _index(self, request: Request) -> Response:
        await self._add_sign_in()
        return file_response(request, self._files["index.html"], self._headers)

    async def _get_config(self, request: Request) -> Response:
        await self._add_sign_in()
        return file_response(request, self._config_file, self._headers)

    async def _add_sign_in(self) -> None:
        """Add how users log in to the configuration; again with the next request if that is not known now."""
        if self._find_sign_in is None:
            return
        sign_in = await self._find_sign_in()
        config = self._config.model_copy(update={"sign_in": sign_in})
        self._config_file = static_file("config.json", config.model_dump_json().encode())
        if sign_in.fault is None:
            self._find_sign_in = None
            parts = urlsplit(sign_in.token_endpoint)
            # The page sends the code there.
            allowed = f"connect-src 'self' {parts.scheme}://{parts.netloc};"
            policy = POLICY.replace("connect-src 'self';", allowed)
            self._headers = {**_HEADERS, "Content-Security-Policy": policy}

    async def _static(self, request: Request) -> Response:
        """Return a file; browsers keep it for good if the path has the present release."""
        release, _, name = request.path_params["name"].rpartition("@/")
        name = f"static/{name}"
        if name not in self._files:
            return problem_response(NotFound(f"The page has no file {name!r}"), self._prefix)
        # The page of another server, of another release, has to read the file again.
        cache_control = "max-age=31536000, immutable" if release == self._release else "no-cache"
        return file_response(request, self._files[name], _HEADERS, cache_control)


def checked_path(name: str, path: str) -> str:
    """Return the path without a slash at its end. Raises ValueError, with the name, unless it is one."""
    if not isinstance(path, str) or not path.startswith("/") or "{" in path or "//" in path:
        raise ValueError(f"{name}={path!r} is no path: pass one that begins with a slash, as '/queue'")
    return path.rstrip("/")


@cache
def _read_files() -> tuple[dict[str, StaticFile], str]:
    """Return the files by name, and their release: the page names its modules as ``static/RELEASE@/…``."""
    shown = {".html", ".js", ".css", ".svg"}
    paths = [path for path in DASHBOARD.rglob("*") if path.suffix in shown]
    contents = {path.relative_to(DASHBOARD).as_posix(): path.read_bytes() for path in sorted(paths)}
    release = hashlib.sha256(b"".join(contents.values())).hexdigest()[:12]
    # All modules at once, and not each after the one that imports it.
    modules = [name for name in contents if name.endswith(".js") and name not in _ON_DEMAND]
    links = "".join(f'<link rel="modulepreload" href="{name}">' for name in modules)
    index = contents["index.html"].decode().replace("</head>", f"{links}</head>")
    contents["index.html"] = index.replace('"static/', f'"static/{release}@/').encode()
    return {name: static_file(name, content) for name, content in contents.items()}, release
