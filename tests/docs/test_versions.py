"""The folder with the documentation of all versions, and the list of pages for language models."""

import json
from pathlib import Path

import pytest
from sitegen.versions import publish


def test_each_minor_version_has_a_site_and_the_newest_is_shown(tmp_path: Path) -> None:
    """A candidate counts less than a release, and `dev` less than both; an older patch changes nothing."""
    site, target = tmp_path / "site", tmp_path / "pages"
    site.mkdir()
    target.mkdir()
    shown = []
    for version in ("dev", "1.0.0rc1", "1.0.0", "1.2.0", "1.10.0", "1.0.1", "1.0.0", "1.11.0rc1", "dev"):
        (site / "index.html").write_text(version)
        publish(site, version, target)
        shown.append((target / "index.html").read_text().split("url=")[1].split("/")[0])
    assert shown == ["dev", "1.0", "1.0", "1.2", *["1.10"] * 5]
    listed = json.loads((target / "versions.json").read_text())
    assert [(one["version"], one["title"], one["aliases"]) for one in listed] == [
        ("1.11", "1.11.0rc1", []),
        ("1.10", "1.10.0", ["latest"]),
        ("1.2", "1.2.0", []),
        ("1.0", "1.0.1", []),
        ("dev", "dev", []),
    ]
    assert (target / "1.0" / "index.html").read_text() == "1.0.1"
    with pytest.raises(ValueError, match=r"1\.0 is no version"):
        publish(site, "1.0", target)
