"""Says what takes long, and how long it took."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager


def say(text: str) -> None:
    """Writes a line to stderr: stdout is for answers, such as a kubeconfig's path."""
    print(f"testbed: {text}", file=sys.stderr, flush=True)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Frames a slow step: `what …` before it, `what: 12 s` after it."""
    say(f"{what} …")
    started = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - started:.1f} s")
