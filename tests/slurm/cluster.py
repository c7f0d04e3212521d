"""A real Slurm on this machine: munged, slurmctld and two nodes, with a folder and ports of their own.

One of a newer release of Debian has slurmrestd too.
"""

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from getpass import getuser
from pathlib import Path
from typing import NamedTuple, Self

import psutil
from servers import free_port
from sitegen import ROOT
from waiting import wait_until

UNPACKED = ROOT / ".slurm"
# Debian's releases with Slurm 24.11 and 26.05.
RELEASES = ("trixie", "forky")
NODES = ("n1", "n2")
CPUS = 4
PARTITION = "p1"
_SECONDS = 60.0
# What is left of jobs and nodes is recognized by the file that all of them have in their environment.
_CONFIG = """
ClusterName=queue
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser={user}
SlurmdUser={user}
PluginDir={plugins}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MailProg=/bin/true
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
KillWait=5
SchedulerParameters=sched_interval=2,bf_interval=2
{nodes}
PartitionName={partition} Nodes=ALL Default=YES MaxTime=INFINITE State=UP
{more}
"""
_CONFIG_OF_REST = """
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={folder}/jwt.key
GresTypes=gpu
"""
_FILES_OF_REST = {
    "cgroup.conf": "CgroupPlugin=disabled\n",
    "gres.conf": "NodeName=n[1-2] Name=gpu File=/dev/null\n",
}


class Programs(NamedTuple):
    """The folders with the programs and the plugins of Slurm, and the variables that both need."""

    folders: tuple[Path, Path]
    plugins: Path
    variables: dict[str, str]
    has_rest: bool = False

    def path(self, name: str) -> str:
        """Return the path of a program; Debian's alternatives have a longer name."""
        return next(str(path) for folder in self.folders for path in sorted(folder.glob(f"{name}*")))


def find_programs(release: str = "") -> Programs | None:
    """Return the programs that `make slurm` has unpacked, None without them."""
    root = UNPACKED / release / "root"
    if not (root.parent / ".ready").exists():
        return None
    [plugins] = {path.parent for path in root.glob("usr/lib/*/*/auth_munge.so")}
    # Those of another release know where their libraries are.
    variables = {} if release else {"LD_LIBRARY_PATH": f"{plugins}:{plugins.parent}"}
    return Programs((root / "usr/sbin", root / "usr/bin"), plugins, variables, bool(release))


def is_open(port: int) -> bool:
    """Return whether a program listens on a port of this machine."""
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


class Cluster:
    """The cluster, during a `with` block. It uses no file and no service of a Slurm of this machine."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="joblib-slurm-"))
        self._config = self.folder / "slurm.conf"
        commands = f"{programs.folders[1]}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        clean = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        self.environment = {**clean, **programs.variables, "SLURM_CONF": str(self._config), "PATH": commands}
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.rest_url = ""

    def __enter__(self) -> Self:
        self._configure()
        try:
            self._start_munge()
            self._start("slurmctld", "-D")
            for node in NODES:
                self.start_node(node)
            if self._programs.has_rest:
                self.start_rest()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _configure(self) -> None:
        host = socket.gethostname().partition(".")[0]
        of_node = f"NodeHostname={host} NodeAddr=127.0.0.1 CPUs={CPUS}"
        of_node += " Gres=gpu:1" if self._programs.has_rest else ""
        nodes = "\n".join(f"NodeName={node} Port={free_port()} {of_node}" for node in NODES)
        values = {"host": host, "port": free_port(), "user": getuser(), "partition": PARTITION}
        values |= {"folder": self.folder, "plugins": self._programs.plugins, "nodes": nodes}
        values["more"] = _CONFIG_OF_REST.format(**values) if self._programs.has_rest else ""
        self._config.write_text(_CONFIG.format(**values))
        (self.folder / "state").mkdir()
        for name in ("munge.key", "jwt.key"):
            (self.folder / name).touch(0o600)
            (self.folder / name).write_bytes(secrets.token_bytes(64))
        if self._programs.has_rest:
            for name, text in _FILES_OF_REST.items():
                (self.folder / name).write_text(text)

    def _start_munge(self) -> None:
        files = {
            "key-file": "key",
            "socket": "socket",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        options = [f"--{name}={self.folder}/munge.{end}" for name, end in files.items()]
        self._start("munged", "--foreground", "--force", "--num-threads=2", *options)
        wait_until((self.folder / "munge.socket").exists, _SECONDS)

    def start_node(self, node: str) -> None:
        """Start a node, also after it was killed, and wait until it takes jobs."""
        (self.folder / node).mkdir(exist_ok=True)
        self._start("slurmd", "-D", "-N", node, "-d", self._programs.path("slurmstepd"), name=node)
        wait_until(lambda: self.run("sinfo", "-hN", "-n", node, "-o", "%t") == "idle", _SECONDS, interval=0.2)

    def start_rest(self) -> None:
        """Start slurmrestd. It refuses to run as root or as Slurm's user, so it sees another one."""
        config = self.folder / "rest.conf"
        text = self._config.read_text()
        config.write_text(text.replace(f"SlurmUser={getuser()}\n", "SlurmUser=root\n"))
        self.folder.chmod(0o711)
        port = free_port()
        self.rest_url = f"http://127.0.0.1:{port}"
        user = ["-u", "65534", "-g", "65534"] if os.getuid() == 0 else []
        options = ["-a", "rest_auth/jwt", "-s", "slurmctld", f"127.0.0.1:{port}"]
        # Of its own it has no token: it passes on those of requests.
        self._start("slurmrestd", *user, *options, SLURM_CONF=str(config), SLURM_JWT="daemon")
        wait_until(lambda: is_open(port), _SECONDS)

    def stop_rest(self) -> None:
        """Stop slurmrestd."""
        self._daemons["slurmrestd"].terminate()
        self._daemons.pop("slurmrestd").wait(_SECONDS)

    def token(self, seconds: int = 3600, user: str = "") -> str:
        """Return a token for slurmrestd, by default of this user; Slurm's user may make those of others."""
        options = [f"lifespan={seconds}", f"username={user or getuser()}"]
        return self.run("scontrol", "token", *options).removeprefix("SLURM_JWT=")

    def _start(self, program: str, *options: str, name: str = "", **variables: str) -> None:
        with (self.folder / f"{name or program}.log").open("ab") as log:
            self._daemons[name or program] = subprocess.Popen(
                [self._programs.path(program), *options],
                cwd=self.folder / name,
                env={**self.environment, **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill_node(self, node: str) -> None:
        """Let a node fail: its slurmd and all that runs on it get SIGKILL, so that none of it reports."""
        self._daemons[node].kill()
        self._daemons[node].wait()
        self._kill_jobs(node)

    def _kill_jobs(self, *nodes: str) -> None:
        """Kill what runs in jobs on some nodes, their slurmstepd first."""
        steps, others = [], []
        for process in psutil.process_iter(["name", "cwd"]):
            with suppress(psutil.Error):
                if process.info["name"].startswith("slurmstepd"):
                    steps += [process] if process.info["cwd"] in {str(self.folder / n) for n in nodes} else []
                    continue
                variables = process.environ()
                if (
                    variables.get("SLURM_CONF") == str(self._config)
                    and variables.get("SLURMD_NODENAME") in nodes
                ):
                    others.append(process)
        for process in steps + others:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _stop(self) -> None:
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
        self._kill_jobs(*NODES)
        for daemon in self._daemons.values():
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, *command: str, folder: Path | None = None, **variables: str) -> str:
        """Run a command of Slurm, and return its output."""
        path = self._programs.path(command[0])
        done = subprocess.run(
            [path, *command[1:]],
            cwd=folder,
            env={**self.environment, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_SECONDS,
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def job(self, job: str) -> dict[str, str]:
        """Return what `scontrol show job` says about a job."""
        shown = self.run("scontrol", "--oneliner", "show", "job", job)
        return dict(part.split("=", 1) for part in shown.split() if "=" in part)

    def cancel_all(self) -> None:
        """Kill all jobs, and wait until none is left."""
        self.run("scancel", "--user", getuser())
        self.run("scancel", "--full", "--signal=KILL", "--user", getuser())
        wait_until(lambda: not self.run("squeue", "--noheader"), _SECONDS, interval=0.2)
