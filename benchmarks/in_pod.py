"""What the benchmark runs inside pods, whole, with `python -I -c`: Python's standard library alone.

    observe FOLDER              answers each line on stdin by one line of JSON
    signal NUMBER PID           sends a signal to a process of this container at the second line on stdin
    kill-agent POD              ends that pod's agent; needs the node's processes
    standbys PID                what the interpreters of this container that wait have used of a processor
    import                      how long a fresh interpreter takes to import TensorFlow and Keras

All but the first two print one line of JSON, and end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def observe(folder: str) -> None:
    """Tell what files hold, and the time.

    A line on stdin is `json FILE`, or `lines FILE` for how many there are, with a path in the folder.
    """
    stamps = Path(folder) / "stamps"
    stamps.mkdir(exist_ok=True)
    stamps.chmod(0o777)
    for line in sys.stdin:
        what, name = line.split()
        try:
            text = (Path(folder) / name).read_text()
        except FileNotFoundError:
            text = ""
        found: Any = json.loads(text or "{}") if what == "json" else len(text.splitlines())
        say({"found": found, "time": time.time()})


def send(number: str, pid: str) -> None:
    """Say that this is ready, then send it, and tell when."""
    sys.stdin.readline()
    say({})
    sys.stdin.readline()
    told = {"time": time.time()}
    os.kill(int(pid), int(number))
    say(told)


def kill_agent(pod: str) -> None:
    """Kill the process that has been told that it looks after this pod: alone it has that variable."""
    name = json.dumps(pod).encode()
    agents = [pid for pid in _all() if name in _environment(pid).get(b"TRAINJOB_AGENT", b"")]
    if not agents:
        raise SystemExit(f"no agent of {pod} is seen on this node")
    told = {"time": time.time()}
    for pid in agents:
        os.kill(pid, signal.SIGKILL)
    say(told)


def standbys(training: str) -> None:
    """Tell of each one; the training process keeps the mark if it was one."""
    marked = [pid for pid in _all() if pid != int(training) and b"TRAINJOB_STANDBY" in _environment(pid)]
    say({str(pid): _cpu_seconds(pid) for pid in marked})


def time_the_import() -> None:
    """Tell the seconds."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import tensorflow, keras"], check=True)
    say({"seconds": time.perf_counter() - begin})


def say(told: Any) -> None:
    """Print a line."""
    print(json.dumps(told), flush=True)


def _all() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]


def _environment(pid: int) -> dict[bytes, bytes]:
    try:
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return {name: value for name, found, value in (pair.partition(b"=") for pair in pairs) if found}


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:13]) / os.sysconf("SC_CLK_TCK")


ORDERS: dict[str, Callable[..., None]] = {
    "observe": observe,
    "signal": send,
    "kill-agent": kill_agent,
    "standbys": standbys,
    "import": time_the_import,
}

if __name__ == "__main__":
    ORDERS[sys.argv[1]](*sys.argv[2:])
