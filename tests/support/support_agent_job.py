"""Real agents of one job on 127.0.0.1, with small Python programs as their training processes.

TRAINJOB_TEST_PYTHON names another interpreter for both, such as a Python 3.9.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from testbed.ports import free_ports

from trainjob.cluster.agents import AgentUnreachable, lay_out, sync
from trainjob.core.agent import CHECKED_START

T = TypeVar("T")

DEADLINE_SECONDS = 200.0
"""For anything to happen; only a hang reaches it."""

TOKEN = "the token of the job"  # noqa: S105

TOY = '''
"""Reports its start and waits for orders: lines of a file of its seat's name."""
import json, os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
config = json.loads(os.environ["TF_CONFIG"])
seat = f"{config['task']['type']}-{config['task']['index']}"
attempt = os.environ.get("TRAINJOB_ATTEMPT", "")

def tell(**what):
    line = json.dumps({"seat": seat, "attempt": attempt, "pid": os.getpid(), **what}) + chr(10)
    with open(folder / "events.jsonl", "a") as file:
        file.write(line)

def report(**what):
    path = pathlib.Path(os.environ["TRAINJOB_PROGRESS_FILE"])
    path.with_suffix(".new").write_text(json.dumps({"state": "training", "time": time.time(), **what}))
    path.with_suffix(".new").replace(path)

def on_term(*_):
    tell(event="terminated")
    code = folder / f"{seat}.code"
    os._exit(int(code.read_text()) if code.exists() else 86)

signal.signal(signal.SIGTERM, on_term)
tell(event="started", epoch=os.environ.get("TRAINJOB_EPOCH"), cluster=config["cluster"],
     agent="TRAINJOB_AGENT" in os.environ)
print("toy", seat, "attempt", attempt, flush=True)
orders, done = folder / f"{seat}.orders", folder / f"{seat}.done"
while True:
    lines = orders.read_text().splitlines() if orders.exists() else []
    taken = int(done.read_text() or 0) if done.exists() else 0
    for line in lines[taken:]:
        taken += 1
        done.write_text(str(taken))
        verb, _, rest = line.partition(" ")
        if verb == "report":
            report(**json.loads(rest))
        elif verb == "exit":
            print("leaving with", rest, flush=True)
            os._exit(int(rest))
        elif verb == "ignore":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        elif verb == "stand-still":
            os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.01)
'''


class Agent:
    def __init__(self, seat: str, incarnation: int, popen: subprocess.Popen[bytes], log: Path) -> None:
        self.seat = seat
        self.incarnation = incarnation
        self.popen = popen
        self._log = log

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.popen.send_signal(number)

    def wait(self) -> int:
        try:
            return self.popen.wait(DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.seat}'s agent did not end:\n{self.output}") from None


class Job:
    """A job's folder, ports and agents; a context manager that leaves nobody behind."""

    def __init__(self, folder: Path, world: Mapping[str, int], **place: Any) -> None:
        self._folder = folder
        self.interpreter = os.environ.get("TRAINJOB_TEST_PYTHON") or sys.executable
        self._place = {"maxRestarts": 3, "graceSeconds": 10, "policy": {"lostSeconds": 2}, **place}
        (folder / "toy.py").write_text(TOY)
        self.command: tuple[str, ...] = (self.interpreter, str(folder / "toy.py"), str(folder))
        lay_out(folder / "bundle", TOKEN)
        self.program = folder / "bundle" / "trainjob.pyz"
        self.digest = ""
        seats = [f"{role}-{index}" for role, count in world.items() for index in range(count)]
        ports = iter(free_ports(2 * len(seats) + 1))
        self.tf_address = {seat: f"127.0.0.1:{next(ports)}" for seat in seats}
        self.agent_port = {seat: next(ports) for seat in seats}
        self.spare_port = next(ports)
        self.cluster = {
            role: [self.tf_address[f"{role}-{index}"] for index in range(count)]
            for role, count in world.items()
        }
        self.agents: dict[str, Agent] = {}
        self._all: list[Agent] = []

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for agent in self._all:
            with contextlib.suppress(ProcessLookupError):
                agent.popen.send_signal(signal.SIGCONT)
            agent.popen.kill()
            agent.popen.wait()
        if error is not None:
            for agent in self._all:
                sys.stderr.write(f"--- {agent.seat} {agent.incarnation}\n{agent.output}\n")

    @property
    def leader(self) -> str:
        return "chief-0" if "chief" in self.cluster else "worker-0"

    def start(self, *seats: str, incarnation: int = 1, cluster: Any = None, **place: Any) -> None:
        for seat in seats or tuple(self.tf_address):
            self._start(seat, incarnation, cluster or self.cluster, place)

    def _start(self, seat: str, incarnation: int, cluster: Any, place: Mapping[str, Any]) -> None:
        log = self._folder / f"log-{seat}-{incarnation}"
        env = {**os.environ, **self.environment(seat, incarnation, cluster, **place)}
        copy = self._folder / f"state-{seat}-{incarnation}" / self.program.name
        program = ["-c", CHECKED_START, str(self.program), str(copy), self.digest]
        start = program if self.digest else [str(self.program)]
        command = [self.interpreter, "-I", "-S", *start, "--", *self.command]
        with log.open("wb") as output:
            popen = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)
        self.agents[seat] = Agent(seat, incarnation, popen, log)
        self._all.append(self.agents[seat])

    def environment(
        self, seat: str, incarnation: int = 1, cluster: Any = None, **place: Any
    ) -> dict[str, str]:
        """What the pod tells its agent; the folders and files that it names are made."""
        role, _, index = seat.rpartition("-")
        state = self._folder / f"state-{seat}-{incarnation}"
        state.mkdir()
        self.termination_log(seat, incarnation).touch()
        agent = {
            "seat": seat,
            "incarnation": incarnation,
            "pod": f"job-{seat}-{incarnation}",
            "address": f"127.0.0.1:{self.agent_port[seat]}",
            "leader": f"127.0.0.1:{self.agent_port[self.leader]}",
            "stallTimeoutSeconds": None,
            "warmStandby": False,
            "ledger": {"attempt": incarnation - 1},
            **self._place,
            **place,
        }
        task = {"type": role, "index": int(index)}
        return {
            "TRAINJOB_AGENT": json.dumps(agent),
            "TRAINJOB_POD_IP": "127.0.0.1",
            "TRAINJOB_STATE_DIR": str(state),
            "TRAINJOB_TERMINATION_LOG": str(self.termination_log(seat, incarnation)),
            "TF_CONFIG": json.dumps({"cluster": cluster or self.cluster, "task": task}),
        }

    def termination_log(self, seat: str, incarnation: int = 1) -> Path:
        return self._folder / f"termination-{seat}-{incarnation}"

    def words(self, seat: str, incarnation: int = 1) -> dict[str, Any]:
        """What an agent left behind."""
        text = self.termination_log(seat, incarnation).read_text()
        words: dict[str, Any] = json.loads(text) if text else {}
        return words

    def order(self, seat: str, line: str) -> None:
        """Tell a seat's training process, the next one to read it, what to do."""
        with (self._folder / f"{seat}.orders").open("a") as file:
            file.write(line + "\n")

    def report(self, seat: str, **report: Any) -> None:
        """Have a seat's training process report this."""
        self.order(seat, f"report {json.dumps(report)}")

    def leave_with(self, seat: str, code: int) -> None:
        """With which code its training process ends on SIGTERM."""
        (self._folder / f"{seat}.code").write_text(str(code))

    def events(self, kind: str = "started") -> list[dict[str, Any]]:
        path = self._folder / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def started(self, attempt: int) -> dict[str, dict[str, Any]]:
        """The starts of an attempt, by seat."""
        return {e["seat"]: e for e in self.events() if e["attempt"] == str(attempt)}

    def wait_started(self, attempt: int, *seats: str) -> dict[str, dict[str, Any]]:
        wanted = set(seats or [s for s in self.tf_address if not s.startswith("evaluator")])
        until(lambda: wanted <= set(self.started(attempt)), f"attempt {attempt} of {sorted(wanted)}")
        return self.started(attempt)

    def kill_child(self, seat: str, number: int = signal.SIGKILL) -> None:
        os.kill([e for e in self.events() if e["seat"] == seat][-1]["pid"], number)

    def ask(self, seat: str = "", *, token: str = TOKEN, **order: Any) -> dict[str, Any]:
        """Sync as the controller does."""
        limit = {"stallTimeoutSeconds": self._place.get("stallTimeoutSeconds")}
        port = self.agent_port[seat or self.leader]
        return dict(asyncio.run(sync("127.0.0.1", port, token, {**limit, **order}, timeout=10)))

    def wait_phase(self, phase: str, **order: Any) -> dict[str, Any]:
        return until(lambda: self._in_phase(phase, order), f"phase {phase}")

    def _in_phase(self, phase: str, order: Mapping[str, Any]) -> dict[str, Any] | None:
        with contextlib.suppress(AgentUnreachable):
            report = self.ask(**order)
            return report if report["phase"] == phase else None
        return None

    def wait_report(self, seat: str, **values: Any) -> dict[str, Any]:
        """Wait until the leading agent knows these values of a seat's progress."""

        def known() -> dict[str, Any] | None:
            answer = self.ask()
            report = answer["members"].get(seat, {}).get("report") or {}
            return answer if {k: report.get(k) for k in values} == values else None

        return until(known, f"{values} of {seat}")

    def wait_state(self, seat: str, state: str) -> dict[str, Any]:
        """Wait until the leading agent knows this state of a seat."""

        def known() -> dict[str, Any] | None:
            answer = self.ask()
            return answer if answer["members"].get(seat, {}).get("state") == state else None

        return until(known, f"{seat} to be {state}")

    def codes(self) -> dict[str, int]:
        """Wait until all have ended."""
        return {seat: agent.wait() for seat, agent in self.agents.items()}


def until(condition: Callable[[], T | None], what: str) -> T:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"waited in vain for {what}")


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def pids(starts: Mapping[str, Mapping[str, Any]]) -> Iterator[int]:
    """The process ids of some starts."""
    return (int(start["pid"]) for start in starts.values())
