"""The first process of the enclosure: it sets up the mounts, then starts and ends what its commands say.

Runs as a script under `unshare`, as process 1 of a new process namespace: when it ends, the kernel ends
everything else in there. Needs nothing but the standard library.

    python inside.py FOLDER     listens on FOLDER/starter.sock; a request is a JSON object, so is the answer
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Where programs in here would otherwise write on the machine: sockets, kubelet's and CNI's data, pods' logs.
COVERED = ("/run", "/var/lib", "/var/log")
# Kernel settings of the whole machine that the kubelet insists on: it sees them as it wants them.
PRETENDED = {
    "/proc/sys/vm/overcommit_memory": "1",
    "/proc/sys/vm/panic_on_oom": "0",
    "/proc/sys/kernel/panic": "10",
    "/proc/sys/kernel/panic_on_oops": "1",
    "/proc/sys/kernel/keys/root_maxkeys": "1000000",
    "/proc/sys/kernel/keys/root_maxbytes": "25000000",
}
STARTER = "starter.sock"


def main(folder: Path) -> None:
    """Sets up, then serves requests until it is killed."""
    _mount(folder)
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.set_wakeup_fd(wake.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = socket.socket(socket.AF_UNIX)
    with short(folder) as short_folder:
        server.bind(str(short_folder / STARTER))
    server.listen(16)
    living: dict[str, int] = {}
    while True:
        readable, _, _ = select.select([server, woken], [], [])
        if woken in readable:
            woken.recv(4096)
        _reap(living)
        if server in readable:
            with server.accept()[0] as connection, contextlib.suppress(OSError):
                answer = _answer(json.loads(connection.makefile().readline()), living, folder)
                connection.sendall(json.dumps(answer).encode())


@contextlib.contextmanager
def short(folder: Path) -> Iterator[Path]:
    """The same folder under a short name: a socket's address has room for 107 bytes, paths may be longer."""
    number = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield Path(f"/proc/self/fd/{number}")
    finally:
        os.close(number)


def _answer(request: dict[str, Any], living: dict[str, int], folder: Path) -> dict[str, Any]:
    match request["do"]:
        case "start":
            living[request["name"]] = _start(request, folder / "logs" / f"{request['name']}.log")
        case "signal":
            if request["name"] in living:
                os.kill(living[request["name"]], request["number"])
        case "run":
            done = subprocess.run(
                request["argv"], capture_output=True, text=True, env=request["env"], check=False
            )
            return {"status": done.returncode, "output": done.stdout + done.stderr}
    return {"living": sorted(living)}


def _start(request: dict[str, Any], log: Path) -> int:
    appending = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), appending, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    argv = request["argv"]
    return os.posix_spawn(argv[0], argv, request["env"], file_actions=actions, setsid=True)


def _reap(living: dict[str, int]) -> None:
    """Takes the status of all that ended, orphans included."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            for name in [name for name, each in living.items() if each == pid]:
                del living[name]


def _mount(folder: Path) -> None:
    # What the machine mounts later is seen in here; what is mounted in here stays, shared among the pods.
    subprocess.run(["mount", "--make-rslave", "/"], check=True)
    subprocess.run(["mount", "--make-rshared", "/"], check=True)
    for path in COVERED:
        own = folder / "covered" / path.strip("/").replace("/", "-")
        own.mkdir(parents=True, exist_ok=True)  # a node that starts again has them
        subprocess.run(["mount", "--bind", str(own), path], check=True)
    for path, value in PRETENDED.items():
        if Path(path).exists():
            own = folder / "covered" / Path(path).name
            own.write_text(value + "\n")
            subprocess.run(["mount", "--bind", str(own), path], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
