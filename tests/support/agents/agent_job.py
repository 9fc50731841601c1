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

from support.forked import Forked, fork
from trainjob.cluster.agents.bundle import lay_out
from trainjob.cluster.agents.wire import AgentUnreachable, sync
from trainjob.core.agent import CHECKED_START

T = TypeVar("T")

DEADLINE_SECONDS = 200.0
"""For anything to happen; only a hang reaches it."""

AGENT = "trainjob_trainer.agent.main"
"""Most agents are forked from a process that has imported this; a program whose digest is checked is not."""

TOKEN = "the token of the job"  # noqa: S105

TOY = '''
"""Reports its start and waits for commands: lines of a file with its replica's name."""
import json, os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
config = json.loads(os.environ["TF_CONFIG"])
replica = f"{config['task']['type']}-{config['task']['index']}"
attempt = os.environ.get("TRAINJOB_ATTEMPT", "")

def log_event(**what):
    line = json.dumps({"replica": replica, "attempt": attempt, "pid": os.getpid(), **what}) + chr(10)
    with open(folder / "events.jsonl", "a") as file:
        file.write(line)

def report(**what):
    path = pathlib.Path(os.environ["TRAINJOB_PROGRESS_FILE"])
    path.with_suffix(".new").write_text(json.dumps({"state": "training", "time": time.time(), **what}))
    path.with_suffix(".new").replace(path)

def on_term(*_):
    log_event(event="terminated")
    code = folder / f"{replica}.code"
    os._exit(int(code.read_text()) if code.exists() else 86)

signal.signal(signal.SIGTERM, on_term)
log_event(event="started", epoch=os.environ.get("TRAINJOB_GENERATION"), cluster=config["cluster"],
     agent="TRAINJOB_AGENT" in os.environ)
print("toy", replica, "attempt", attempt, flush=True)
commands, done = folder / f"{replica}.commands", folder / f"{replica}.done"
while True:
    lines = commands.read_text().splitlines() if commands.exists() else []
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
    def __init__(
        self, replica: str, incarnation: int, popen: subprocess.Popen[bytes] | Forked, log: Path
    ) -> None:
        self.replica = replica
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
            raise AssertionError(f"{self.replica}'s agent did not end:\n{self.output}") from None


class Job:
    """A job's folder, ports and agents; a context manager that kills all of them."""

    def __init__(self, folder: Path, world: Mapping[str, int], **settings: Any) -> None:
        self._folder = folder
        self.interpreter = os.environ.get("TRAINJOB_TEST_PYTHON") or sys.executable
        self._settings = {"maxRestarts": 3, "graceSeconds": 10, "policy": {"lostSeconds": 2}, **settings}
        (folder / "toy.py").write_text(TOY)
        self.command: tuple[str, ...] = (self.interpreter, str(folder / "toy.py"), str(folder))
        lay_out(folder / "bundle", TOKEN)
        self.program = folder / "bundle" / "trainjob.pyz"
        self.digest = ""
        replicas = [f"{role}-{index}" for role, count in world.items() for index in range(count)]
        ports = iter(free_ports(2 * len(replicas) + 1))
        self.tf_address = {replica: f"127.0.0.1:{next(ports)}" for replica in replicas}
        self.agent_port = {replica: next(ports) for replica in replicas}
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
                sys.stderr.write(f"--- {agent.replica} {agent.incarnation}\n{agent.output}\n")

    @property
    def leader(self) -> str:
        return "chief-0" if "chief" in self.cluster else "worker-0"

    def start(self, *replicas: str, incarnation: int = 1, cluster: Any = None, **settings: Any) -> None:
        for replica in replicas or tuple(self.tf_address):
            self._start(replica, incarnation, cluster or self.cluster, settings)

    def _start(self, replica: str, incarnation: int, cluster: Any, settings: Mapping[str, Any]) -> None:
        log = self._folder / f"log-{replica}-{incarnation}"
        env = {**os.environ, **self.environment(replica, incarnation, cluster, **settings)}
        copy = self._folder / f"state-{replica}-{incarnation}" / self.program.name
        program = ["-c", CHECKED_START, str(self.program), str(copy), self.digest]
        start = program if self.digest else [str(self.program)]
        popen: subprocess.Popen[bytes] | Forked
        with log.open("wb") as output:
            if self.interpreter == sys.executable and not self.digest:
                main = f"{AGENT}:main"
                popen = fork([AGENT], main, [], env, output.fileno(), argv=[*start, "--", *self.command])
            else:
                command = [self.interpreter, "-I", "-S", *start, "--", *self.command]
                popen = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT)
        self.agents[replica] = Agent(replica, incarnation, popen, log)
        self._all.append(self.agents[replica])

    def environment(
        self, replica: str, incarnation: int = 1, cluster: Any = None, **settings: Any
    ) -> dict[str, str]:
        """Return an agent's environment; make the folders and files that it names."""
        role, _, index = replica.rpartition("-")
        state = self._folder / f"state-{replica}-{incarnation}"
        state.mkdir()
        self.termination_log(replica, incarnation).touch()
        agent = {
            "replica": replica,
            "incarnation": incarnation,
            "pod": f"job-{replica}-{incarnation}",
            "address": f"127.0.0.1:{self.agent_port[replica]}",
            "leader": f"127.0.0.1:{self.agent_port[self.leader]}",
            "stallTimeoutSeconds": None,
            "warmStandby": False,
            "restarts": {"attempt": incarnation - 1},
            **self._settings,
            **settings,
        }
        task = {"type": role, "index": int(index)}
        return {
            "TRAINJOB_AGENT": json.dumps(agent),
            "TRAINJOB_POD_IP": "127.0.0.1",
            "TRAINJOB_STATE_DIR": str(state),
            "TRAINJOB_TERMINATION_LOG": str(self.termination_log(replica, incarnation)),
            "TF_CONFIG": json.dumps({"cluster": cluster or self.cluster, "task": task}),
        }

    def termination_log(self, replica: str, incarnation: int = 1) -> Path:
        return self._folder / f"termination-{replica}-{incarnation}"

    def termination_message(self, replica: str, incarnation: int = 1) -> dict[str, Any]:
        """The termination message of an agent."""
        text = self.termination_log(replica, incarnation).read_text()
        message: dict[str, Any] = json.loads(text) if text else {}
        return message

    def send(self, replica: str, line: str) -> None:
        """Send a command to a replica's training process; the next one to read it executes it."""
        with (self._folder / f"{replica}.commands").open("a") as file:
            file.write(line + "\n")

    def report(self, replica: str, **report: Any) -> None:
        """Have a replica's training process report this."""
        self.send(replica, f"report {json.dumps(report)}")

    def leave_with(self, replica: str, code: int) -> None:
        """With which code its training process ends on SIGTERM."""
        (self._folder / f"{replica}.code").write_text(str(code))

    def events(self, kind: str = "started") -> list[dict[str, Any]]:
        path = self._folder / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == kind]

    def started(self, attempt: int) -> dict[str, dict[str, Any]]:
        """The starts of an attempt, by replica."""
        return {e["replica"]: e for e in self.events() if e["attempt"] == str(attempt)}

    def wait_started(self, attempt: int, *replicas: str) -> dict[str, dict[str, Any]]:
        wanted = set(replicas or [s for s in self.tf_address if not s.startswith("evaluator")])
        until(lambda: wanted <= set(self.started(attempt)), f"attempt {attempt} of {sorted(wanted)}")
        return self.started(attempt)

    def kill_child(self, replica: str, number: int = signal.SIGKILL) -> None:
        os.kill([e for e in self.events() if e["replica"] == replica][-1]["pid"], number)

    def ask(self, replica: str = "", *, token: str = TOKEN, **target: Any) -> dict[str, Any]:
        """Sync as the controller does."""
        limit = {"stallTimeoutSeconds": self._settings.get("stallTimeoutSeconds")}
        port = self.agent_port[replica or self.leader]
        return dict(asyncio.run(sync("127.0.0.1", port, token, {**limit, **target}, timeout=10)))

    def wait_phase(self, phase: str, **target: Any) -> dict[str, Any]:
        return until(lambda: self._in_phase(phase, target), f"phase {phase}")

    def _in_phase(self, phase: str, target: Mapping[str, Any]) -> dict[str, Any] | None:
        with contextlib.suppress(AgentUnreachable):
            report = self.ask(**target)
            return report if report["phase"] == phase else None
        return None

    def wait_report(self, replica: str, **values: Any) -> dict[str, Any]:
        """Wait until the leading agent knows these values of a replica's progress."""

        def known() -> dict[str, Any] | None:
            answer = self.ask()
            report = answer["members"].get(replica, {}).get("report") or {}
            return answer if {k: report.get(k) for k in values} == values else None

        return until(known, f"{values} of {replica}")

    def wait_state(self, replica: str, state: str) -> dict[str, Any]:
        """Wait until the leading agent knows this state of a replica."""

        def known() -> dict[str, Any] | None:
            answer = self.ask()
            return answer if answer["members"].get(replica, {}).get("state") == state else None

        return until(known, f"{replica} to be {state}")

    def codes(self) -> dict[str, int]:
        """Wait until all have ended."""
        return {replica: agent.wait() for replica, agent in self.agents.items()}


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
