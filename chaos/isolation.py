"""Network and mounts of its own for a run, so that packets can be dropped and file systems filled."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

_MARK = "CHAOS_ISOLATED"
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
_LOCAL_RULE = 30_000


def enter() -> None:
    """Start this process again in namespaces of its own, if the machine permits it."""
    if not is_isolated() and (command := _unshare()):
        os.environ[_MARK] = "1"
        os.execv(command[0], [*command, *sys.orig_argv])  # noqa: S606


def is_isolated() -> bool:
    """Return whether this process has namespaces of its own."""
    return _MARK in os.environ


def _unshare() -> Sequence[str]:
    """Return a command that runs its arguments in new namespaces, or nothing if that is not possible."""
    unshare, ip = shutil.which("unshare", path=_PATH), shutil.which("ip", path=_PATH)
    if unshare is None or ip is None:
        return ()
    user = () if os.geteuid() == 0 else ("--user", "--map-current-user", "--keep-caps")
    # The rules that drop packets must come before the one for local addresses, which is the first by default.
    script = (
        f"{ip} link set lo up && {ip} rule add pref {_LOCAL_RULE} lookup local && {ip} rule del pref 0"
        ' && exec "$@"'
    )
    command = (unshare, *user, "--net", "--mount", "sh", "-c", script, "sh")
    tried = subprocess.run([*command, "true"], capture_output=True, check=False)
    return command if tried.returncode == 0 else ()


class Blackhole:
    """Drops packets without a reset: of open connections, or everything from and to a port."""

    def __init__(self) -> None:
        self._rules: list[str] = []

    def drop_connections(self, connections: Iterable[tuple[int, int]]) -> None:
        """Drop the packets of open connections, given as pairs of ports, in both directions."""
        for one, other in connections:
            self._drop("sport", str(one), "dport", str(other))
            self._drop("sport", str(other), "dport", str(one))

    def drop_responses(self, port: int) -> None:
        """Drop all packets that come from a port; new connections to it time out."""
        self._drop("sport", str(port))

    def stop(self) -> None:
        """Forward all packets again."""
        while self._rules:
            _run("ip", "rule", "del", "pref", self._rules.pop())

    def _drop(self, *match: str) -> None:
        priority = str(len(self._rules) + 1)
        _run("ip", "rule", "add", "pref", priority, "ipproto", "tcp", *match, "blackhole")
        self._rules.append(priority)


def mount_small_disk(folder: Path, mebibytes: int) -> None:
    """Mount a file system in memory that is full after `mebibytes`."""
    _run("mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=0777", "none", str(folder))


def unmount(folder: Path) -> None:
    """Unmount a file system."""
    _run("umount", "--lazy", str(folder))


def _run(command: str, *arguments: str) -> None:
    path = shutil.which(command, path=_PATH)
    assert path is not None, f"{command} was not found"
    subprocess.run([path, *arguments], check=True)
