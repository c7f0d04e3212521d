"""A shared folder: its entries can be listed and its files read, and nothing else."""

import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from zndraw_joblib.wire.problems import InvalidRequest, ProviderFailed
from zndraw_joblib.worker.folders import FileContent, Folder, FolderListing, normalized_path, share_folder
from zndraw_joblib.worker.manager import JobManager

Make = Callable[..., JobManager]
SECRET = "the secret"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a folder with files, beside a secret folder, and with links of all kinds."""
    outside, home = tmp_path / "outside", tmp_path / "home"
    for folder in (outside, home, home / "sub", tmp_path / "home-of-others"):
        folder.mkdir()
    for place in (outside / "secret", tmp_path / "secret", tmp_path / "home-of-others" / "secret"):
        place.write_text(SECRET)
    (home / "a.txt").write_text("0123456789")
    (home / "sub" / "b ä%#?.txt").write_text("b")
    (home / "~").write_text("tilde")
    links = {
        "out-file": outside / "secret",
        "out-folder": outside,
        "out-relative": "../secret",
        "out-by-two": "in-folder/../../secret",
        "out-to-others": "../home-of-others",
        "in-file": "sub/../a.txt",
        "in-folder": home / "sub",
        "broken": "nowhere",
        "loop": "loop",
    }
    for name, target in links.items():
        (home / name).symlink_to(target)
    os.mkfifo(home / "pipe")
    return home


def content(folder: Folder, path: str, *part: int) -> bytes:
    """Return the bytes of a file."""
    return b"".join(folder.blocks(path, *part))


ESCAPES = [
    "../secret",
    "..",
    "sub/../../secret",
    "sub/../a.txt",
    "./a.txt",
    "/../secret",
    "{tmp}/secret",
    "{tmp}/home/../secret",
    "/etc/passwd",
    "//etc/passwd",
    "~/.ssh/id_rsa",
    "~root",
    "$HOME/secret",
    "out-file",
    "out-folder",
    "out-folder/secret",
    "out-relative",
    "out-by-two",
    "out-to-others",
    "out-to-others/secret",
    "in-folder/../../secret",
    "broken",
    "loop",
    "pipe",
    "a.txt/../../secret",
    "a.txt\x00",
    "\x00",
    "file://{tmp}/secret",
    "file:{tmp}/secret",
    "local://{tmp}/secret",
    "a.txt::file://{tmp}/secret",
    "zip://x::file://{tmp}/x.zip",
    "simplecache::file://{tmp}/secret",
    "http://127.0.0.1:9/secret",
    "..\\secret",
    "sub\\..\\..\\secret",
    "C:\\secret",
    "\\\\host\\share",
    "%2e%2e/secret",
    "..%2fsecret",
    "\u2025/secret",
    "\uff0e\uff0e/secret",
    "\ud800",
    "a" * 5000,
    "/".join(["sub"] * 2000),
]


def test_no_path_leaves_the_folder(home: Path, subtests: pytest.Subtests) -> None:
    """Nothing outside can be read or listed, and no error reveals the folder's path or its neighbours."""
    for path in ESCAPES:
        with subtests.test(path=path):
            folder = Folder(home)
            requested = path.format(tmp=home.parent)
            for read in (lambda: content(folder, requested), lambda: folder.entries(requested, 0, 9)):
                with pytest.raises((OSError, ValueError)) as raised:
                    read()
                message = str(raised.value).replace(repr(requested), "")
                assert str(home.parent) not in message
                assert SECRET not in message


def test_files_inside_can_be_read(home: Path) -> None:
    """Through links that stay inside, in parts, and with names that have special characters."""
    folder = Folder(home)
    for path in ("a.txt", "/a.txt", "in-file"):
        assert content(folder, path) == b"0123456789"
    assert content(folder, "a.txt", 3) == b"3456789"
    assert content(folder, "a.txt", 3, 2) == b"34"
    assert content(folder, "a.txt", 3, 0) == b""
    assert content(folder, "a.txt", 30) == b""
    assert content(folder, "~") == b"tilde"
    for path in ("sub/b ä%#?.txt", "in-folder/b ä%#?.txt"):
        assert content(folder, path) == b"b"
    for path in ("sub", "", "/"):
        with pytest.raises(IsADirectoryError, match=f"This is a folder: {path!r}"):
            content(folder, path)
    with pytest.raises(NotADirectoryError, match=r"This is not a folder: 'a.txt'"):
        folder.entries("a.txt", 0, 9)


def test_a_list_hides_the_target_of_a_link_to_the_outside(home: Path) -> None:
    """Such a link has a name, and neither type nor size nor time."""
    entries, total = Folder(home).entries("", 0, 100)
    found = {entry.name: entry for entry in entries}
    assert total == len(found) == 13
    assert [entry.name for entry in entries] == sorted(found)
    for name in ("out-file", "out-folder", "out-relative", "out-by-two", "out-to-others", "broken", "loop"):
        assert (found[name].type, found[name].size, found[name].modified) == ("other", None, None), name
    assert (found["a.txt"].type, found["a.txt"].size) == ("file", 10)
    assert found["a.txt"].modified is not None
    assert found["a.txt"].modified.timestamp() == pytest.approx((home / "a.txt").stat().st_mtime, abs=1e-3)
    assert (found["in-file"].type, found["in-file"].size) == ("file", 10)
    assert (found["sub"].type, found["in-folder"].type, found["pipe"].type) == (
        "directory",
        "directory",
        "other",
    )
    assert Folder(home).entries("", 1, 2) == (entries[1:3], 13)


def test_a_folder_replaced_by_a_link_while_reading_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder becomes a link after it was checked and before the file is opened."""
    folder = Folder(home)
    opened = LocalFileSystem.open
    (home / "sub" / "secret").write_text("harmless")

    def replace_by_link(*arguments: Any) -> Any:
        (home / "sub").rename(home / "was")
        (home / "sub").symlink_to(home.parent / "outside")
        return opened(*arguments)

    # The file system is fsspec's: nothing else runs between the check and the opening.
    monkeypatch.setattr(LocalFileSystem, "open", replace_by_link)
    with pytest.raises(FileNotFoundError):
        content(folder, "sub/secret")


def test_the_shared_folder_may_be_a_link(home: Path) -> None:
    """The target of the link is shared."""
    link = home.parent / "link"
    link.symlink_to(home)
    assert content(Folder(link), "a.txt") == b"0123456789"


def test_names_that_are_not_utf8(home: Path) -> None:
    """They are listed escaped, beside the other entries."""
    with open(os.path.join(os.fsencode(home), b"caf\xe9"), "wb"):
        pass
    names = [entry.model_dump_json() for entry in Folder(home).entries("", 0, 100)[0]]
    assert any("caf" in name for name in names)


def test_an_invalid_path_is_refused(subtests: pytest.Subtests) -> None:
    """Before the file system is used."""
    for path in ["a//b", "..", "a/../b", ".", "a/.", "a\\b", "a::b", "a\x00b"]:
        with subtests.test(path=path), pytest.raises(ValueError, match="not a path inside the folder"):
            normalized_path(path)


def test_slashes_around_a_path_are_ignored(subtests: pytest.Subtests) -> None:
    """The shared folder is the root."""
    for path, plain in [("", ""), ("/", ""), ("/a/b/", "a/b"), ("a b", "a b")]:
        with subtests.test(path=path, plain=plain):
            assert normalized_path(path) == plain


def test_other_file_systems(tmp_path: Path) -> None:
    """Each file system of fsspec works: here memory and an archive."""
    memory = fsspec.filesystem("memory")
    memory.pipe({"/box/a.txt": b"12345", "/box/d/b.txt": b"z", "/boxes": b"o", "/other": b"o"})
    box = Folder("memory://box")
    assert [(entry.name, entry.type, entry.size) for entry in box.entries("", 0, 9)[0]] == [
        ("a.txt", "file", 5),
        ("d", "directory", None),
    ]
    assert content(box, "a.txt", 1, 3) == b"234"
    assert content(box, "d/b.txt") == b"z"
    for path in ("other", "../other", "memory://other", "/other"):
        with pytest.raises((OSError, ValueError)):
            content(box, path)
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as archive:
        archive.writestr("a/b.txt", "hey")
    packed = Folder(f"zip://::{tmp_path}/some.zip")
    assert [entry.name for entry in packed.entries("a", 0, 9)[0]] == ["b.txt"]
    assert content(packed, "a/b.txt") == b"hey"


@pytest.fixture
def site(tmp_path: Path) -> Iterator[str]:
    """Return the URL of a folder of a web server, with a page that also links to other places."""
    site = tmp_path / "site"
    (site / "box").mkdir(parents=True)
    (site / "secret").write_text(SECRET)
    (site / "box" / "a.txt").write_text("12345")
    links = ("a.txt", "../secret", "/secret", "http://127.0.0.1:9/secret", "a.txt?x=1")
    page = "".join(f'<a href="{link}">here</a>' for link in links)
    (site / "box" / "index.html").write_text(page)
    handler = partial(QuietHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/box"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""


def test_a_web_folder(site: str) -> None:
    """A path is part of a URL: special characters are refused, and links to other places are not listed."""
    folder = Folder(site)
    assert content(folder, "a.txt") == b"12345"
    names = [entry.name for entry in folder.entries("", 0, 9)[0]]
    assert "a.txt" in names
    assert "secret" not in names
    for path in ("%2e%2e/secret", "..%2fsecret", "a.txt?x", "a.txt#x", "../secret", "/secret"):
        with pytest.raises((OSError, ValueError)) as raised:
            content(folder, path)
        assert "127.0.0.1" not in str(raised.value)


def test_places_that_cannot_be_shared(home: Path) -> None:
    """A file, a missing folder, and this machine behind another file system, which would follow links."""
    for place in (home / "a.txt", home / "nowhere", "memory://nowhere"):
        with pytest.raises(NotADirectoryError):
            Folder(place)
    with pytest.raises(ValueError, match="give its path alone"):
        Folder(f"dir::file://{home}")


def test_without_fsspec_the_error_names_the_extra() -> None:
    """Everything can be imported; sharing a folder raises an error that names the package to install."""
    script = """
import sys
sys.modules["fsspec"] = None
from zndraw_joblib import FileContent, Folder, FolderListing, share_folder
try:
    Folder("/")
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "Sharing a folder needs the extra 'files': the module 'fsspec" in done.stdout
    assert "Run: pip install 'zndraw-joblib[files]', or pip install '.[files]' in a clone" in done.stdout


@pytest.fixture
def shared(worker: Make, home: Path, room: str) -> JobManager:
    """Return a worker that shares the folder as `home`."""
    manager = worker()
    ids = share_folder(manager, Folder(home), name="home", room=room)
    assert set(ids) == {"folders", "files"}
    return manager


def test_a_folder_is_browsed(shared: JobManager, home: Path, room: str) -> None:
    """Page by page, then a file as a whole and in parts; nothing has changed afterwards."""
    before = sorted((path, path.lstat().st_mtime_ns) for path in home.rglob("*"))
    folders, files = f"{room}:folders:home", f"{room}:files:home"
    page = shared.read_provider(folders, {"limit": 2}).json()
    assert (page["total"], page["limit"], page["offset"], len(page["items"])) == (13, 2, 0, 2)
    assert page["items"][0]["name"] == "a.txt"
    assert page["items"][0]["modified"].endswith("Z")
    assert [item["name"] for item in shared.read_provider(folders, {"path": "sub"}).json()["items"]] == [
        "b ä%#?.txt"
    ]
    whole = shared.read_provider(files, {"path": "/a.txt"})
    assert (whole.content, whole.content_type) == (b"0123456789", "application/octet-stream")
    part = shared.read_provider(files, {"path": "a.txt", "offset": 2, "length": 3})
    assert part.content == b"234"
    assert sorted((path, path.lstat().st_mtime_ns) for path in home.rglob("*")) == before


def test_errors_reach_the_client(shared: JobManager, home: Path, room: str) -> None:
    """Invalid parameters are the client's error, a missing file is not; no error shows the folder's place."""
    wrong: list[tuple[str, dict[str, Any], type[Exception], str]] = [
        ("files", {"path": "../secret"}, InvalidRequest, "path: not a path inside the folder"),
        ("files", {"path": "a.txt", "offset": -1}, InvalidRequest, "offset: "),
        ("files", {}, InvalidRequest, "path: "),
        ("folders", {"limit": 501}, InvalidRequest, "limit: "),
        ("files", {"path": "out-file"}, ProviderFailed, "no such file or folder: 'out-file'"),
        ("files", {"path": "sub"}, ProviderFailed, "This is a folder: 'sub'"),
        ("folders", {"path": "a.txt"}, ProviderFailed, "This is not a folder: 'a.txt'"),
    ]
    for category, params, error, text in wrong:
        with pytest.raises(error, match=text) as raised:
            shared.read_provider(f"{room}:{category}:home", params)
        assert str(home.parent) not in str(raised.value)


def test_a_large_file_is_sent_in_blocks(home: Path, shared: JobManager, room: str) -> None:
    """20 MiB arrive unchanged."""
    data = os.urandom(1024 * 1024) * 20
    (home / "large").write_bytes(data)
    assert max(map(len, Folder(home).blocks("large"))) == 1024 * 1024
    assert shared.read_provider(f"{room}:files:home", {"path": "large"}).content == data


def test_the_schemas_describe_the_parameters() -> None:
    """A front-end can build a form from them."""
    assert set(FolderListing.model_json_schema()["properties"]) == {"path", "offset", "limit"}
    schema = FileContent.model_json_schema()
    assert (set(schema["properties"]), schema["required"]) == ({"path", "offset", "length"}, ["path"])
