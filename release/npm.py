"""Build the npm package, pack it, and use the file as a project that installs it does."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from generate import project
from generate.types import MODULES, NODE

from release import ReleaseError
from release.commands import run

_NPM = NODE.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
_IMPORT = """
import { Queue } from "zndraw-joblib";
import { JobWorker } from "zndraw-joblib/worker";
for (const kind of [Queue, JobWorker]) new kind({ url: "http://127.0.0.1:1", token: "none" });
"""
_TYPED = """
import { Queue, type TaskHandle } from "zndraw-joblib";
export const task: TaskHandle = new Queue().task("1");
"""
_OPTIONS = {
    "strict": True,
    "noEmit": True,
    "module": "nodenext",
    "target": "es2022",
    "lib": ["es2023", "dom", "dom.iterable"],
    "types": [],
}


def check(repository: Path, folder: Path) -> list[str]:
    """Raise `ReleaseError` if the packed file cannot be installed offline, imported, or type-checked."""
    packed = pack(repository, folder)
    user = folder / "user"
    user.mkdir()
    (user / "package.json").write_text('{"type": "module"}')
    (user / "tsconfig.json").write_text(json.dumps({"compilerOptions": _OPTIONS, "files": ["typed.ts"]}))
    (user / "import.mjs").write_text(_IMPORT)
    (user / "typed.ts").write_text(_TYPED)
    run([NODE, _NPM, "install", "--offline", "--ignore-scripts", "--no-audit", packed], user)
    run([NODE, "import.mjs"], user)
    run([NODE, MODULES / "typescript" / "bin" / "tsc"], user)
    return []


def pack(repository: Path, target: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """Build the package of a repository into a file in `target`, and return it.

    Its name differs from that of the chart. Its metadata name the repository that publishes it: npm refuses
    the signature of another one.
    """
    sources, build = repository / "clients" / "typescript", target / "npm"
    build.mkdir(parents=True)
    run([NODE, MODULES / "typescript" / "bin" / "tsc", "-p", sources, "--outDir", build / "dist"], sources)
    run([NODE, sources / "build.mjs", build], sources)
    shutil.copy(sources / "README.md", build)
    urls = dict(project.URLS)
    if name := environment.get("GITHUB_REPOSITORY"):
        urls.setdefault("Repository", f"{environment['GITHUB_SERVER_URL']}/{name}")
    metadata = project.text(sources / "package.json", urls)
    (build / "package.json").write_text(metadata, encoding="utf-8")
    [packed] = json.loads(
        run([NODE, _NPM, "pack", "--json", "--ignore-scripts", "--loglevel", "error"], build)
    )
    if any(
        not name.startswith("dist/") for name in _names(packed) - {"LICENSE", "README.md", "package.json"}
    ):
        raise ReleaseError(f"the npm package has other files than those of dist: {sorted(_names(packed))}")
    version = json.loads(metadata)["version"]
    file = shutil.move(build / packed["filename"], target / f"zndraw-joblib-npm-{version}.tgz")
    shutil.rmtree(build)
    return Path(file)


def _names(packed: dict[str, list[dict[str, str]]]) -> set[str]:
    """Return the paths of the files in a package, from the report of `npm pack`."""
    return {one["path"] for one in packed["files"]}
