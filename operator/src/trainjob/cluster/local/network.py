"""A network of a run's own: its replicas reach each other on `lo`, and nothing else reaches them.

TensorFlow's servers listen on every address of the machine and serve whoever connects, files and programs
included. On Linux a run's replicas therefore start in one network namespace, in a user namespace where the
caller isn't root. A process in there, this file as a program, opens the run's own connections to the agents:
a socket belongs to the namespace in which it was made, wherever it is used.

    python -I -S network.py SOCKET
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

_NEW_USER, _NEW_NETWORK = 0x10000000, 0x40000000
_SET_FLAGS, _UP_AND_RUNNING = 0x8914, 0x1 | 0x40  # netdevice(7)


_NAMES = re.compile(
    r"keras\.(?:datasets|applications)|get_file\(|tensorflow_datasets|tfds\.|tensorflow_hub|hub\.load"
    r"|load_dataset\(|from_pre(?:trained|set)\(|huggingface_hub|kagglehub|wandb|mlflow|comet_ml|neptune"
    r"|urllib\.request|urlopen\(|requests\.|boto3|google\.cloud"
)
_SCHEME = re.compile(r"\b(?!file\b)[a-z][a-z0-9+.-]*://")
_LONGEST_SCRIPT = 1 << 20


def why_not_alone(words: Iterable[str], variables: Iterable[str], folder: Path) -> str:
    """Return what shows that replicas are likely to need another network than their own, or an empty text.

    That is an address in their words or variables, or in a script among the words the name of something that
    downloads or reports. What the script imports isn't read.

    Args:
        words: the programs and their arguments.
        variables: the values that the job gives variables.
        folder: where the programs start.
    """
    words = tuple(dict.fromkeys(words))
    for text in (*words, *variables):
        if match := _SCHEME.search(text):
            return f"the job names {match[0]}"
    for name in (word for word in words if word.endswith(".py")):
        with contextlib.suppress(OSError, ValueError):
            with (folder / name).open(encoding="utf-8", errors="replace") as script:
                text = script.read(_LONGEST_SCRIPT)
            if match := _NAMES.search(text):
                return f"{name} names {match[0].rstrip('(.')}"
    return ""


class NoOwnNetwork(Exception):
    """This machine lets the caller make none; the message says why."""


class OwnNetwork:
    """A network namespace with `lo` alone, which lives as long as this object or a process in it.

    Attributes:
        namespaces: descriptors of the namespaces that a process has to enter, in order.

    Raises:
        NoOwnNetwork: it can't be made.
    """

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise NoOwnNetwork(f"{sys.platform} has no network namespaces")
        self.namespaces: tuple[int, ...] = ()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            program = [sys.executable, "-I", "-S", __file__, str(theirs.fileno())]
            self._holder = subprocess.Popen(program, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)
        made, _, kinds = self._socket.recv(1024).decode().partition(" ")
        if made != "made":
            self.close()
            raise NoOwnNetwork(f"{made} {kinds}".strip() or "the process that makes it has ended")
        folder = Path(f"/proc/{self._holder.pid}/ns")
        try:
            for kind in kinds.split():
                self.namespaces += (os.open(folder / kind, os.O_RDONLY | os.O_CLOEXEC),)
        except OSError as error:
            self.close()
            raise NoOwnNetwork(f"its namespaces can't be opened: {error.strerror}") from error

    async def connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to a port in the network; as `asyncio.open_connection`."""
        import asyncio  # noqa: PLC0415 - the program below needs none, and starts in half the time

        self._socket.send(b"socket")
        _, descriptors, _, _ = socket.recv_fds(self._socket, 16, 1)
        if not descriptors:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the run's network is closed")
        connection = socket.socket(fileno=descriptors[0])
        try:
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connection, (host, port))
        except BaseException:
            connection.close()
            raise
        return await asyncio.open_connection(sock=connection)

    def close(self) -> None:
        """End the process that holds it; more calls do nothing."""
        self._socket.close()
        self._holder.wait()
        for descriptor in self.namespaces:
            os.close(descriptor)
        self.namespaces = ()


def _hold(channel: socket.socket) -> None:
    """Make the namespaces, then a socket for each request until the peer is gone."""
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    kinds = "net"
    # Root keeps its rights over files of other users only in the user namespace that it is in.
    if user != 0 or libc.unshare(_NEW_NETWORK) != 0:
        kinds = "user net"
        if libc.unshare(_NEW_USER | _NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP_AND_RUNNING))
    channel.send(f"made {kinds}".encode())
    while channel.recv(16):
        with socket.socket() as made:
            socket.send_fds(channel, [b"socket"], [made.fileno()])


if __name__ == "__main__":
    peer = socket.socket(fileno=int(sys.argv[1]))
    try:
        _hold(peer)
    except OSError as problem:
        with contextlib.suppress(OSError):
            peer.send(f"network namespaces can't be made here: {problem.strerror or problem}".encode())
