"""Each block of code in the documentation is parsed, type-checked or compared with the program."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy
import pytest
import yaml
from deploy.known import OTHER_VARIABLES, SETTINGS, parse
from generate import types
from generate.openapi import document
from sitegen import ROOT

from docs.code import PAGES, Code, code
from docs.commands import commands, functions, typed
from zndraw_joblib.jobs.codecs import encode

CHECKED = {"python", "console", "bash", "json", "js", "yaml", "toml", "http", "sql", "ts"}
# Text is no code.
UNCHECKED = {"text"}
# The paths of TypeScript's declarations are not in the OpenAPI document.
DECLARATIONS = r"/v1/joblib/types/[a-z]+\.d\.ts"
ELLIPSIS = "…"
MYPY = """\
[mypy]
python_version = 3.11
plugins = pydantic.mypy
follow_imports = silent
check_untyped_defs = true
ignore_missing_imports = true
disable_error_code = no-redef, top-level-await, empty-body
"""
# Programs that are not this package's; their arguments are not checked.
PROGRAMS = {
    *(
        "cd",
        "chmod",
        "cp",
        "curl",
        "date",
        "echo",
        "install",
        "mkdir",
        "openssl",
        "pip",
        "psql",
        "python",
        "python3",
        "rm",
        "runuser",
    ),
    *(
        "createdb",
        "createuser",
        "docker",
        "journalctl",
        "kubectl",
        "npm",
        "npx",
        "pg_dump",
        "pg_restore",
        "sbatch",
        "scancel",
        "sqlite3",
    ),
    *("systemctl", "useradd", "uv", "uvicorn", "valkey-server", ".", "pytest", "git"),
}


@cache
def operations() -> dict[str, set[str]]:
    """Return the methods of each path, as a pattern."""
    return {re.sub(r"\{\w+\}", "[^/]+", path): set(methods) for path, methods in document()["paths"].items()}


def each_block(*languages: str) -> Callable[[Callable[[Code], None]], Callable[[pytest.Subtests], None]]:
    """Return a test that checks every block in any of these languages, and reports each that fails."""

    def decorate(check: Callable[[Code], None]) -> Callable[[pytest.Subtests], None]:
        def test(subtests: pytest.Subtests) -> None:
            blocks = code(*languages)
            assert blocks
            for block in blocks:
                with subtests.test(block.name):
                    check(block)

        test.__doc__ = check.__doc__
        return test

    return decorate


def test_every_block_has_a_language_that_is_checked() -> None:
    """A block of code without a language would not be checked, nor shown in colours."""
    unknown = [one.name for one in code() if one.language not in CHECKED | UNCHECKED]
    assert unknown == [], (
        "name the language of these blocks: ```console, ```python, …, or ```text if it is none"
    )


@pytest.mark.timeout(300)
def test_python_is_type_checked(tmp_path: Path) -> None:
    """The Python of a page, in one module, has the right names, arguments and types."""
    pages = defaultdict(list)
    for block in code("python"):
        if not is_excerpt(block):
            pages[block.page].append(block)
    (tmp_path / "jobs.py").write_text(example_jobs())
    (tmp_path / "mypy.ini").write_text(MYPY)
    for page, blocks in pages.items():
        (tmp_path / module_of(page)).write_text(as_module(blocks))
    # The public names have types: what does not exist is an error.
    (tmp_path / "wrong.py").write_text("from zndraw_joblib import Queue\n\nQueue().submmit()\n")
    path = [tmp_path, ROOT / "src", ROOT / "tests"]
    command = [sys.executable, "-m", "mypy", "--config-file", tmp_path / "mypy.ini"]
    command += ["--cache-dir", ROOT / ".mypy_cache" / "docs", *(tmp_path / module_of(page) for page in pages)]
    command.append(tmp_path / "wrong.py")
    environment = {"MYPYPATH": ":".join(map(str, path)), "PATH": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert [error[:18] for error in errors] == ["wrong.py:3: error:"], done.stdout + done.stderr


def is_excerpt(block: Code) -> bool:
    """Return whether a block is a part of an example, all of which tests run."""
    return any(block.text.strip() in path.read_text() for path in (ROOT / "examples").rglob("*.py"))


def module_of(page: Path) -> str:
    """Return the file name for the Python of a page."""
    return re.sub(r"\W", "_", str(page.relative_to(ROOT).with_suffix(""))) + ".py"


def as_module(blocks: list[Code]) -> str:
    """Return the blocks of a page as a module, with each line where it is on the page."""
    lines = ["from docs.given import *"]
    for block in blocks:
        lines += [""] * (block.line - 1 - len(lines))
        lines += block.text.replace(ELLIPSIS, "...").splitlines()
    return "\n".join(lines) + "\n"


def example_jobs() -> str:
    """Return the module `jobs` of the pages: the example's jobs, and the function of the README."""
    [function] = [one.text for one in code("python") if one.page.name == "README.md" and "@job" in one.text]
    return (ROOT / "examples" / "jobs.py").read_text() + function


@each_block("console", "bash")
def test_commands_are_known(block: Code) -> None:
    """The command line has each command and option, the Makefile each target, the server each variable."""
    text = typed(block.language, block.text)
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    found = list(commands(text))
    assert found or "^C" in block.text
    for variables, words in found:
        for name in variables:
            known = not name.startswith("ZNDRAW_") or name in SETTINGS | OTHER_VARIABLES
            assert known, f"{name} is no setting"
        if not words:
            continue
        program = words[0].rpartition("/")[2]
        if program == "zndraw-joblib":
            if not words[1].startswith("-"):
                parse(["0199f3a2" if is_id(word) else word for word in words[1:]])
        elif program == "make":
            assert {one for one in words[1:] if "=" not in one} <= targets
        else:
            assert program in PROGRAMS | functions(text), f"{program} is no known program"


def is_id(word: str) -> bool:
    """Return whether a word stands for an id: `ID`, or a variable."""
    return word == "ID" or word.startswith("$")


@each_block("console", "bash")
def test_requests_of_curl_are_known(block: Code) -> None:
    """The server has each path that curl asks, and a body in `-d` is JSON."""
    for _, words in commands(typed(block.language, block.text)):
        if words[:1] != ["curl"]:
            continue
        for url in (word for word in words if "/v1/joblib/" in word or "/health/" in word):
            path = re.sub(r"^.*?(?=/v1/joblib/|/health/)", "", url).partition("?")[0]
            assert any(re.fullmatch(one, path) for one in [*operations(), DECLARATIONS]), url
        for at, word in enumerate(words):
            if word == "-d" and words[at + 1].startswith("{"):
                json.loads(words[at + 1])


@each_block("json")
def test_json_is_valid(block: Code) -> None:
    """A JSON block is one value, or one on each line."""
    try:
        json.loads(block.text)
    except json.JSONDecodeError:
        for line in block.text.splitlines():
            json.loads(line)


@each_block("http")
def test_http_requests_are_known(block: Code) -> None:
    """The server has the operation, and the body is JSON."""
    first, *rest = block.text.splitlines()
    method, path = first.split()
    assert any(re.fullmatch(one, path) for one, known in operations().items() if method.lower() in known)
    body = "".join(line for line in rest if not re.match(r"[A-Z][\w-]+: ", line))
    assert not body or json.loads(body)


@each_block("yaml", "toml")
def test_yaml_and_toml_are_valid(block: Code) -> None:
    """Configurations parse."""
    assert yaml.safe_load(block.text) if block.language == "yaml" else tomllib.loads(block.text)


def test_javascript_is_valid(subtests: pytest.Subtests, tmp_path: Path) -> None:
    """Node parses each block as a module."""
    path = tmp_path / "block.mjs"
    for block in code("js"):
        path.write_text(block.text.replace(ELLIPSIS, ""))
        process = subprocess.run([types.NODE, "--check", path], check=False, capture_output=True, text=True)
        with subtests.test(block.name):
            assert process.returncode == 0, process.stderr


def test_a_page_reads_arrays_of_any_size(tmp_path: Path) -> None:
    """The functions of the page about results read tagged JSON and the file of a large array."""
    page = ROOT / "docs" / "how-to" / "results.md"
    given = [numpy.arange(6).reshape(2, 3).astype(kind) for kind in ("<f8", "<i8", "<u2", "|b1")]
    for number, array in enumerate(given):
        numpy.save(tmp_path / f"{number}.npy", array)
    tagged = encode({"x": given, "raw": b"\x00\xff"}).decode()
    blocks = [block.text for block in code("js") if block.page == page and "function" in block.text]
    read = "(await readArray(new Response(readFileSync(`${folder}/${number}.npy`))))"
    lines = [
        'import { readFileSync } from "node:fs";',
        *blocks,
        f"const folder = {json.dumps(str(tmp_path))}, tagged = decode({tagged}), all = [];",
        "const plain = ({ shape, data }) => [shape, Array.from(data, Number)];",
        f"for (const number of [0, 1, 2, 3]) all.push([plain(tagged.x[number]), plain({read})]);",
        "console.log(JSON.stringify([all, Array.from(tagged.raw)]));",
    ]
    (tmp_path / "page.mjs").write_text("\n".join(lines))
    done = subprocess.run([types.NODE, tmp_path / "page.mjs"], check=True, capture_output=True, text=True)
    arrays, raw = json.loads(done.stdout)
    assert raw == [0, 255]
    assert arrays == [[[[2, 3], array.astype(float).ravel().tolist()]] * 2 for array in given]


def test_typescript_compiles(tmp_path: Path) -> None:
    """The TypeScript of a page, in one module beside the server's declarations, has the right types."""
    pages = {block.page for block in code("ts")}
    package = tmp_path / "node_modules" / "zndraw-joblib"
    shutil.copytree(ROOT / "clients" / "typescript" / "src", package)
    exports = {".": "./index.ts", "./worker": "./worker.ts"}
    (package / "package.json").write_text(json.dumps({"type": "module", "exports": exports}))
    for folder in (tmp_path, package):
        for declarations in (ROOT / "src" / "zndraw_joblib" / "server" / "types").glob("*.d.ts"):
            shutil.copy(declarations, folder)
    for modules in (types.MODULES, ROOT / "tests" / "peers" / "js" / "node_modules"):
        link_modules(modules, tmp_path / "node_modules")
    for page in pages:
        text = "".join(block.text for block in code("ts") if block.page == page)
        (tmp_path / f"{page.stem}.ts").write_text(text.replace(ELLIPSIS, "x"))
    options = ["--strict", "--noEmit", "--target", "es2023", "--module", "esnext"]
    options += ["--moduleResolution", "bundler", "--lib", "es2023,dom,dom.iterable"]
    command = [types.NODE, types.MODULES / "typescript" / "bin" / "tsc", *options]
    command += [tmp_path / f"{page.stem}.ts" for page in pages]
    done = subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)


def link_modules(source: Path, target: Path) -> None:
    """Add the packages of a folder to another one, which may have other packages of the same scope."""
    for package in source.glob("*"):
        if package.name.startswith("@"):
            link_modules(package, target / package.name)
        else:
            target.mkdir(parents=True, exist_ok=True)
            if not (target / package.name).exists():
                (target / package.name).symlink_to(package.resolve())


async def test_sql_is_valid(postgres_url: str) -> None:
    """PostgreSQL plans each query."""
    import asyncpg

    connection = await asyncpg.connect(postgres_url.replace("+asyncpg", ""))
    try:
        for block in code("sql"):
            assert await connection.fetch(f"EXPLAIN {block.text}"), block.name
    finally:
        await connection.close()


def test_pages_are_found() -> None:
    """The pages are those of the repository, also the README."""
    assert ROOT / "README.md" in PAGES
    assert len(code("python")) > 30
