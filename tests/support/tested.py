"""The table of tested versions in docs/versions.md: each run that passes can write its own row.

    TESTED="make test-newest" make test-newest

The row of the command that `TESTED` names has the versions of this run, its date and its number of tests.
"""

from __future__ import annotations

import os
import platform
import re
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from testbed.places import GO_MODULES
from testbed.programs import kubernetes_version

PAGE = Path(__file__).parents[2] / "docs" / "versions.md"
HEADER = "| command | date | Python | TensorFlow | Keras | `kubernetes` | Kubernetes | Kueue | tests passed |"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    command = os.environ.get("TESTED")
    if not command or exitstatus:
        return
    names = [report.nodeid for report in terminalreporter.getreports("passed")]
    cluster = kubernetes_version() if any("/e2e/" in name or "/fleet/" in name for name in names) else ""
    kueue = _kueue_version() if any("/fleet/test_kueue" in name for name in names) else ""
    tensorflow = _installed("tensorflow-cpu") or _installed("tensorflow")
    row = (
        f"`{command}`",
        f"{datetime.now(UTC):%Y-%m-%d}",
        *(platform.python_version(), tensorflow, _installed("keras"), _installed("kubernetes")),
        *(cluster.removeprefix("v"), kueue, f"{len(names):,}"),
    )
    PAGE.write_text(with_row(PAGE.read_text(encoding="utf-8"), row), encoding="utf-8")


def with_row(page: str, row: tuple[str, ...]) -> str:
    """Return the page with this row in its table; it replaces the row with the same first cell."""
    before, header, after = page.partition(HEADER)
    assert header, f"{PAGE} has no table of tested versions"
    line, *rows = after.lstrip("\n").partition("\n\n")[0].splitlines()
    rest = after.lstrip("\n").partition("\n\n")[2]
    others = [each for each in rows if not each.startswith(f"| {row[0]} |")]
    table = [header, line, *sorted([*others, f"| {' | '.join(row)} |"])]
    return before + "\n".join(table) + f"\n\n{rest}"


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _kueue_version() -> str:
    text = (GO_MODULES / "kueue" / "go.mod").read_text(encoding="utf-8")
    found = re.search(r"sigs\.k8s\.io/kueue v([\d.]+)", text)
    return found[1] if found else ""
