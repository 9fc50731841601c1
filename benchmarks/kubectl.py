"""kubectl in one namespace, and programs that it runs in pods."""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

IN_POD = Path(__file__).parent / "in_pod.py"
GUARD_SECONDS = 180.0
"""For anything that is waited for; only a hang reaches it."""


class Kubectl:
    """The program, for one cluster and namespace."""

    def __init__(self, program: str, kubeconfig: Path, context: str | None, namespace: str) -> None:
        self._base = [program, "--kubeconfig", str(kubeconfig), "--namespace", namespace]
        self._base += ["--context", context] if context else []

    def __call__(self, *words: str, stdin: str = "", check: bool = True) -> str:
        """Run it and return what it prints; what it complains about ends the benchmark."""
        done = subprocess.run(
            [*self._base, *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=GUARD_SECONDS,
            check=False,
        )
        if check and done.returncode:
            raise SystemExit(f"kubectl {' '.join(words)[:200]}: {done.stderr.strip()}")
        return done.stdout

    def create(self, *manifests: Mapping[str, Any]) -> None:
        """Create these objects."""
        items = {"apiVersion": "v1", "kind": "List", "items": manifests}
        self("create", "-f", "-", stdin=json.dumps(items))

    def get(self, *words: str) -> dict[str, Any]:
        """Return an object, or a list of them."""
        found: dict[str, Any] = json.loads(self("get", *words, "-o", "json"))
        return found

    def begin(self, pod: str, *words: str) -> subprocess.Popen[str]:
        """Start an order of in_pod.py in a pod."""
        program = ["python3", "-I", "-u", "-c", IN_POD.read_text(), *words]
        return subprocess.Popen(
            [*self._base, "exec", "-i", pod, "--", *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, orders: Sequence[tuple[str, ...]]) -> list[dict[str, Any]]:
        """Carry out orders of in_pod.py, all at once, each a pod and its words; return what each says."""
        started = [self.begin(*order) for order in orders]
        said = [process.communicate(timeout=GUARD_SECONDS)[0] for process in started]
        for order, process in zip(orders, started, strict=True):
            if process.returncode:
                raise SystemExit(f"`{' '.join(order[1:])}` has failed in {order[0]}")
        return [json.loads(line) for line in said]


class Observer:
    """A program in a pod that is asked again and again; a context manager."""

    def __init__(self, kubectl: Kubectl, pod: str, *words: str) -> None:
        self._process = kubectl.begin(pod, *words)

    def ask(self, line: str) -> dict[str, Any]:
        """Return its answer."""
        self.say(line)
        return self.answer()

    def say(self, line: str) -> None:
        """Let it begin with an answer."""
        stdin = self._process.stdin
        assert stdin is not None  # noqa: S101 - it is a pipe
        stdin.write(f"{line}\n")
        stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return the answer to what was said."""
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101 - it is a pipe
        # One line for each: nothing waits in the buffer, where select would not see it.
        heard = select.select([stdout], [], [], GUARD_SECONDS)[0] and stdout.readline()
        if not heard:
            raise SystemExit("a program in a pod doesn't answer")
        told: dict[str, Any] = json.loads(heard)
        return told

    def __enter__(self) -> Observer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()
