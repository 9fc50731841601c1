"""A Docker engine in namespaces of its own, for as long as a command runs, from Debian's package.

The enclosure has no wire: bridges, firewall rules and containers' packets stay inside, and so does the
command. Images, containers and volumes are deleted at the end.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from testbed import cgroups
from testbed.commands import run, succeeds
from testbed.component import Component
from testbed.debian import search_path, unpacked
from testbed.enclosure import Enclosure
from testbed.errors import TestbedError, Unfit
from testbed.locking import locked
from testbed.node_tier import check_machine
from testbed.places import state
from testbed.programs import program
from testbed.waiting import until

SOCKET = "/run/docker.sock"  # in the enclosure, where clients look for it by default
# dockerd keeps a key in /etc/docker; kind mounts /lib/modules, which Docker makes where there is none.
OVERLAID = (Path("/etc"), Path("/lib").resolve())


class Docker:
    """A running engine."""

    def __init__(self, enclosure: Enclosure) -> None:
        self._enclosure = enclosure

    def call(self, *words: str | Path) -> str:
        """Runs the client and returns its stdout."""
        return run((*self._client(), *words))

    def wait(self) -> None:
        """Returns once the engine serves; raises a TestbedError with the end of its log if it has ended."""
        until(self._serves, what="an answer of dockerd", seconds=60)

    def enter(self, command: Sequence[str], env: Mapping[str, str]) -> int:
        """Runs a command beside the engine, with this process's terminal and folder; its exit status.

        Args:
            command: Its words. `docker` is on its PATH.
            env: Variables on top of this process's own; PATH is put before the usual one.
        """
        assert self._enclosure.first
        path = os.pathsep.join([env.get("PATH", ""), str(unpacked("docker").parent), search_path()])
        words = ("nsenter", f"--target={self._enclosure.first.pid}", "--mount", "--net", "--pid", "--ipc")
        done = subprocess.run(
            (*words, f"--wd={Path.cwd()}", "--", *command),
            env={**os.environ, **env, "PATH": path.strip(os.pathsep)}, check=False,
        )  # fmt: skip
        return done.returncode

    def _serves(self) -> bool:
        self._enclosure.check("dockerd")
        return succeeds((*self._client(), "version"), timeout=5)

    def _client(self) -> tuple[str, ...]:
        return (str(unpacked("docker")), "--host", f"unix://{self._enclosure.root}{SOCKET}")


def check() -> None:
    """Raises Unfit if an engine can't run here."""
    if os.geteuid() != 0:
        raise Unfit("a Docker engine needs root: run this as root, or where there is an engine")
    check_machine()


@contextmanager
def running() -> Iterator[Docker]:
    """An engine that ends with this block, or with this process.

    Raises:
        Unfit: This machine can't have one; says why.
        TestbedError: It could not be started.
    """
    check()
    daemon = _daemon()
    with locked(state() / "docker.lock"):
        _clean()
        _folder().mkdir(parents=True, mode=0o755)
        cgroups.create(cgroups.name_for_docker())
        try:
            enclosure = Enclosure.create(_folder(), die_with_us=True)
            enclosure.run("ip", "link", "set", "lo", "up")
            for path in OVERLAID:
                _overlay(enclosure, path)
            enclosure.start(daemon)
            docker = Docker(enclosure)
            docker.wait()
            yield docker
        finally:
            _clean()


def stop() -> None:
    """Cleans up after one that was killed; nothing to do is fine."""
    if _folder().exists() or cgroups.leftovers(cgroups.name_for_docker()):
        with locked(state() / "docker.lock"):
            _clean()


def _daemon() -> Component:
    """The engine. It finds containerd, and that finds runc, by PATH: the first one is our stand-in for it."""
    programs = (program("runc"), unpacked("runc"), unpacked("containerd"), unpacked("dockerd"))
    path = os.pathsep.join([*(str(each.parent) for each in programs), search_path()])
    words = (
        f"--host=unix://{SOCKET}", "--storage-driver=overlay2", "--oom-score-adjust=0",
        "--exec-opt=native.cgroupdriver=cgroupfs", f"--cgroup-parent=/{cgroups.name_for_docker()}",
    )  # fmt: skip
    return Component("dockerd", (str(unpacked("dockerd")), *words), {"PATH": path})


def _overlay(enclosure: Enclosure, path: Path) -> None:
    """What is written to a folder stays in the enclosure."""
    upper, work = (enclosure.folder / "covered" / f"{path.name}-{name}" for name in ("upper", "work"))
    upper.mkdir()
    work.mkdir()
    options = f"lowerdir={path},upperdir={upper},workdir={work}"
    enclosure.run("mount", "-t", "overlay", "-o", options, "overlay", str(path))


def _clean() -> None:
    Enclosure(_folder()).destroy()
    cgroups.remove(cgroups.name_for_docker())
    shutil.rmtree(_folder(), ignore_errors=True)
    if _folder().exists():
        raise TestbedError(f"{_folder()} can't be deleted")


def _folder() -> Path:
    return state() / "docker"
