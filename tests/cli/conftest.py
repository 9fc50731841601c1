"""A server for commands, and a kubeconfig that names it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cli.server import CliServer


@pytest.fixture(autouse=True)
def _own_logging(monkeypatch: pytest.MonkeyPatch) -> None:
    """`run` replaces the handlers of its process, which are those of pytest here."""
    monkeypatch.setattr(logging.root, "handlers", [])


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliServer]:
    """An API server in memory, which KUBECONFIG names."""
    with CliServer().serve() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(tmp_path / "kubeconfig")))
        yield server
