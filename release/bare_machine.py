"""Run every target of the Makefile as on a machine that has never run one.

    python3 release/bare_machine.py                        all of them: hours, and 20 GB of disk
    python3 release/bare_machine.py kind-e2e check         some
    python3 release/bare_machine.py --without test-fleet   the others

Each target gets a clone of its own of what is committed, and empty folders for the test cluster's cache, for
temporary files and for the records of runs: nothing that another one has made helps it. It needs git, make
and Python, as the Makefile does. The last lines say how each target ended and how long it took, or what it
needs that isn't here; with CI=true, that is a failure.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OPTIONS = {"version": ["NEW=9.9.9"]}
THEN = {"cluster-up": "cluster-down"}
"""What ends what a target leaves running: it follows in the same clone."""


def is_root() -> bool:
    """Whether this is root on Linux."""
    return sys.platform == "linux" and os.geteuid() == 0


def has_docker() -> bool:
    """Whether a Docker engine answers."""
    return subprocess.run(["sh", "-c", "docker info"], capture_output=True, check=False).returncode == 0


NEEDS: dict[str, tuple[str, Callable[[], bool]]] = {
    "pictures": ("Debian's apt-get", lambda: shutil.which("apt-get") is not None),
    "test-cluster": ("Linux and root", is_root),
    "test-nightly": ("Linux and root", is_root),
    "release-check": ("Linux and root", is_root),
    "first-steps": ("Linux and root", is_root),
    "cluster-up": ("Linux and root", is_root),
    "kind-e2e": ("Docker, or Linux and root", lambda: is_root() or has_docker()),
}


def targets(makefile: str) -> list[str]:
    """Return the targets of a Makefile that have a name to type."""
    return re.findall(r"^([a-z][a-z0-9-]*):(?!=)", makefile, re.MULTILINE)


def choose(known: Sequence[str], words: Sequence[str]) -> list[str]:
    """Return the targets that the command line asks for, in the Makefile's order."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all of the Makefile by default")
    parser.add_argument("--without", nargs="+", default=[], metavar="TARGET", help="leave these out")
    given = parser.parse_args(words)
    for name in {*given.targets, *given.without} - {*known}:
        parser.error(f"the Makefile has no target {name}")
    return [name for name in known if name in (given.targets or known) and name not in given.without]


def run_all(repository: Path, chosen: Sequence[str]) -> dict[str, tuple[int | None, str]]:
    """Run targets one after the other.

    Returns:
        Each one's exit status, or None if it can't run here, and what to say of it.
    """
    outcomes: dict[str, tuple[int | None, str]] = {}
    for target in chosen:
        needs, is_met = NEEDS.get(target, ("", lambda: True))
        if not is_met():
            outcomes[target] = None, f"not run: it needs {needs}"
        elif target not in outcomes:
            with tempfile.TemporaryDirectory(prefix="bm-", ignore_cleanup_errors=True) as folder:
                for each in filter(None, (target, THEN.get(target))):
                    begun = time.monotonic()
                    status = run(repository, each, Path(folder))
                    outcomes[each] = status, f"exit status {status}, {time.monotonic() - begun:.0f} s"
    return outcomes


def run(repository: Path, target: str, folder: Path) -> int:
    """Run one target in a folder's clone, which is made if it isn't there; return its exit status."""
    own = {"TRAINJOB_CACHE": folder / "cache", "XDG_STATE_HOME": folder / "state", "TMPDIR": folder / "t"}
    if not (folder / "clone").exists():
        for each in own.values():
            each.mkdir()
        subprocess.run(["git", "clone", "--quiet", repository, folder / "clone"], check=True)
    command = ["make", target, *OPTIONS.get(target, [])]
    print(f"\n=== {' '.join(command)}", flush=True)
    # Neither another make's options, nor another environment's Python, nor another cluster.
    others = re.compile("MAKE|MFLAGS|VIRTUAL_ENV|KUBECONFIG|TRAINJOB_(?!DEBIAN_MIRROR)")
    kept = {name: text for name, text in os.environ.items() if not others.match(name)}
    env = {**kept, **{name: str(each) for name, each in own.items()}}
    return subprocess.run(command, cwd=folder / "clone", env=env, check=False).returncode


def main() -> int:
    """Run what the command line asks for; return 1 if a target failed, or on CI can't run."""
    outcomes = run_all(ROOT, choose(targets((ROOT / "Makefile").read_text()), sys.argv[1:]))
    print()
    for target, (_, text) in outcomes.items():
        print(f"{target:14} {text}")
    accepted = {0} if os.environ.get("CI") == "true" else {0, None}
    return int(not {status for status, _ in outcomes.values()} <= accepted)


if __name__ == "__main__":
    sys.exit(main())
