"""What files for other tools repeat of pyproject.toml: the version, and the addresses in `[project.urls]`."""

import json
import re
import tomllib
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from generate import ROOT

_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
_VERSION: str = _PROJECT["version"]
# The keys are those that the Python Package Index knows. Without an address, the files name none.
URLS: Mapping[str, str] = _PROJECT.get("urls", {})
_STAGES = {"a": "alpha", "b": "beta", "rc": "rc"}
_PLACEHOLDER = "https://docs.example.org/zndraw-joblib"
PACKAGE = ROOT / "clients" / "typescript" / "package.json"
CHART = ROOT / "deploy" / "helm" / "zndraw-joblib" / "Chart.yaml"
ALERTS = ROOT / "deploy" / "prometheus-alerts.yml"
PATHS = (PACKAGE, CHART, ROOT / "CITATION.cff", ROOT / "mkdocs.yml", ALERTS, ROOT / "SECURITY.md")


def npm_version(version: str) -> str:
    """Return a version in npm's form: `1.0.0rc1` is `1.0.0-rc.1`."""
    return re.sub(r"(a|b|rc)(\d+)$", lambda found: f"-{_STAGES[found[1]]}.{found[2]}", version)


def text(path: Path, urls: Mapping[str, str] = URLS) -> str:
    """Return the text of one of these files with the version and the addresses of the project."""
    text = path.read_text(encoding="utf-8")
    repository, site = urls.get("Repository"), urls.get("Documentation")
    match path.name:
        case "package.json":
            text = re.sub(r'(?<="version": ").*(?=")', npm_version(_VERSION), text)
            source = {"type": "git", "url": f"git+{repository}.git", "directory": "clients/typescript"}
            text = _line(
                text, '  "repository": {},\n', repository and json.dumps(source), after='  "version"'
            )
            return _line(text, '  "homepage": {},\n', site and json.dumps(site), after='  "version"')
        case "Chart.yaml":
            version = re.sub(r"(a|b|rc)\d+$", r"-\g<0>", _VERSION)
            text = re.sub(r"(?m)(?<=^version: ).*$", version, text)
            text = re.sub(r"(?m)(?<=^appVersion: ).*$", _VERSION, text)
            text = _line(text, "sources: {}\n", repository and f"[{repository}]", after="appVersion:")
            return _line(text, "home: {}\n", site, after="appVersion:")
        case "CITATION.cff":
            text = re.sub(r"(?m)(?<=^version: ).*$", _VERSION, text)
            text = _line(text, "repository-code: {}\n", repository, after="license:")
            return _line(text, "url: {}\n", site, after="license:")
        case "mkdocs.yml":
            return _line(text, "repo_url: {}\n", repository, after="site_description:")
        case "prometheus-alerts.yml":
            # The published site has a folder for each minor version.
            base = f"{site}/{'.'.join(_VERSION.split('.')[:2])}" if site else _PLACEHOLDER
            return re.sub(r"(?<=runbook_url: ).*(?=/how-to/)", base, text)
        case _:
            name = "/".join(repository.split("/")[-2:]) if repository else "OWNER/REPOSITORY"
            return re.sub(r"(?<=--repo )[\w.-]+/[\w.-]+", name, text)


def _line(text: str, line: str, value: str | None, after: str) -> str:
    """Replace, insert or remove a line of a text; a new one comes after the line that begins with `after`."""
    begin = line.partition("{}")[0]
    text = re.sub(rf"(?m)^{re.escape(begin)}.*\n", "", text)
    if value is None:
        return text
    return re.sub(rf"(?m)^{re.escape(after)}.*\n", lambda found: found[0] + line.format(value), text, count=1)


FILES = {path: partial(text, path) for path in PATHS}
