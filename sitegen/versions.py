"""Put the built site into a folder with one for each version, which a web server or GitHub Pages serves."""

import json
import re
import shutil
from pathlib import Path

_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)((?:a|b|rc)\d+)?")
_DEV = "dev"
# It sorts after `rc1`.
_FINAL = "~"
_REDIRECT = """\
<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={0}/"><a href="{0}/">{0}</a>
"""


def publish(site: Path, version: str, target: Path) -> None:
    """Replace the site of a version below `target`, list it in `versions.json`, and lead `/` to the newest.

    `version` is `dev`, or that of a release: all releases of a minor version share a folder, and only the
    newest of them replaces what is there. A candidate is the newest only if there is no release. The selector
    of the theme reads `versions.json`.
    """
    folder = _folder(version)
    index = target / "versions.json"
    listed = json.loads(index.read_text()) if index.exists() else []
    titles = {one["version"]: one["title"] for one in listed}
    if folder in titles and _key(version) < _key(titles[folder]):
        return
    shutil.rmtree(target / folder, ignore_errors=True)
    shutil.copytree(site, target / folder)
    titles[folder] = version
    newest = sorted(titles, key=lambda name: _key(titles[name]), reverse=True)
    finished = [name for name in newest if _key(titles[name])[-1] == _FINAL]
    default = (finished or newest)[0]
    rows = [
        {"version": name, "title": titles[name], "aliases": ["latest"] if name == default else []}
        for name in newest
    ]
    index.write_text(json.dumps(rows, indent=2) + "\n")
    (target / "index.html").write_text(_REDIRECT.format(default))
    # GitHub Pages would leave out files whose names begin with an underscore.
    (target / ".nojekyll").touch()


def _folder(version: str) -> str:
    if version == _DEV:
        return version
    found = _VERSION.fullmatch(version)
    if found is None:
        raise ValueError(f"{version} is no version of the form 1.2.3 or 1.2.3rc1, and not {_DEV}")
    return f"{found[1]}.{found[2]}"


def _key(version: str) -> tuple[object, ...]:
    """Order versions: the development below all releases, a candidate below its release."""
    found = _VERSION.fullmatch(version)
    if found is None:
        return (-1,)
    return (*map(int, found.group(1, 2, 3)), found[4] or _FINAL)
