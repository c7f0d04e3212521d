"""TypeScript declarations of the API: files without data, so they need no identity."""

from functools import cache
from pathlib import Path

from fastapi import FastAPI, Request, Response

from zndraw_joblib.contract.problems import NotFound
from zndraw_joblib.server.http.static_files import StaticFile, file_response, static_file
from zndraw_joblib.server.problem_responses import problem_response

FOLDER = Path(__file__).parents[1] / "types"


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
    return {path.name: static_file(path.name, path.read_bytes()) for path in FOLDER.glob("*.d.ts")}
