"""Namespaces of their own for the node's processes: network, mounts, process numbers.

All that happens in there stays in there: addresses, routes and firewall rules go with the network namespace,
mounts with the mount namespace, and every process, however deep in a container, with the first process. So
cleaning up after a crash is to end one process; no kubelet, containerd or cluster of this machine is touched.
"""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from testbed import inside
from testbed.component import Component, Plain, check_alive, ended, process_file
from testbed.debian import search_path
from testbed.errors import TestbedError, Unfit
from testbed.process import Process
from testbed.waiting import until

OUTER = "enclosure"  # `unshare`, on the machine
FIRST = "first"  # the first process inside, by its number on the machine


class Enclosure:
    """A running enclosure, known by its folder; a Runner."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, folder: Path, *, die_with_us: bool) -> "Enclosure":
        """Makes the namespaces and starts the first process.

        Raises:
            Unfit: The folder lies where the enclosure has folders of its own.
            TestbedError: The kernel refused.
        """
        for path in inside.COVERED:
            if folder.is_relative_to(path):
                raise Unfit(f"the test cluster's files can't be in {path}: set TMPDIR to another folder")
        plain = Plain(folder, die_with_us=die_with_us)
        outer = plain.start(
            Component(
                OUTER,
                ("unshare", "--fork", "--kill-child=KILL", "--pid", "--mount-proc", "--mount", "--net",
                 "--ipc", "--", sys.executable, "-I", inside.__file__, str(folder)),
            )
        )  # fmt: skip
        made = cls(folder)

        def first() -> Process | None:
            check_alive(folder, outer, OUTER)
            return made._first_process()

        until(first, what="the first process of the enclosure", seconds=20).write(process_file(folder, FIRST))
        return made

    @property
    def first(self) -> Process | None:
        """The first process inside; None if there never was one."""
        return Process.read(process_file(self.folder, FIRST))

    @property
    def alive(self) -> bool:
        """Whether it still runs: both, for the first process takes a while to follow the outer one."""
        outer = Process.read(process_file(self.folder, OUTER))
        return bool(outer and outer.alive and self.first and self.first.alive)

    def start(self, component: Component) -> None:
        """Starts a component inside; returns at once."""
        env = {**_environment(), **component.env}
        self._ask(do="start", name=component.name, argv=component.argv, env=env)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Signals a component, if it lives."""
        self._ask(do="signal", name=name, number=int(number))

    def living(self) -> set[str]:
        """The names of the components that run."""
        return set(self._ask(do="list")["living"])

    def check(self, *names: str) -> None:
        """Raises a TestbedError with the end of its log if one of these components has ended."""
        for name in sorted(set(names) - self.living()):
            raise ended(self.folder, name)

    @property
    def root(self) -> str:
        """Where the files that are seen inside can be found from outside."""
        return f"/proc/{self.first.pid}/root" if self.first else ""

    def run(self, *argv: str) -> str:
        """Runs a short command inside and returns its output.

        Raises:
            TestbedError: Its status is not 0.
        """
        done = self._ask(do="run", argv=argv, env=_environment())
        if done["status"] != 0:
            raise TestbedError(f"{' '.join(argv)} ended with status {done['status']}:\n{done['output']}")
        return done["output"]

    def destroy(self) -> None:
        """Ends everything inside at once."""
        for name in (FIRST, OUTER):
            process = Process.read(process_file(self.folder, name))
            if process:
                process.kill()

    def _first_process(self) -> Process | None:
        """Who listens on the socket: the kernel gives its number as seen from here."""
        try:
            with self._connection() as connection:
                answer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
                connection.sendall(b'{"do": "list"}\n')
                return Process.of(struct.unpack("3i", answer)[0])
        except OSError:
            return None

    def _ask(self, **request: Any) -> dict[str, Any]:
        try:
            with self._connection() as connection, connection.makefile() as answer:
                connection.sendall(json.dumps(request).encode() + b"\n")
                return json.loads(answer.read())
        except (OSError, ValueError) as error:
            raise TestbedError(f"the enclosure in {self.folder} doesn't answer: {error}") from error

    @contextmanager
    def _connection(self) -> Iterator[socket.socket]:
        with socket.socket(socket.AF_UNIX) as connection, inside.short(self.folder) as folder:
            connection.settimeout(60)
            connection.connect(str(folder / inside.STARTER))
            yield connection


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": search_path()}


def may_enclose() -> bool:
    """Whether this user may make such namespaces here."""
    try:
        done = subprocess.run(
            ["unshare", "--fork", "--pid", "--mount", "--net", "--ipc", "mount", "--make-rshared", "/"],
            capture_output=True, check=False,
        )  # fmt: skip
    except OSError:
        return False
    return done.returncode == 0
