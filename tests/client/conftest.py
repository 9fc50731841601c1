"""A server for the client, and a kubeconfig that names it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cli.server import CliServer


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliServer]:
    """An API server in memory, which KUBECONFIG names."""
    with CliServer().serve() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(tmp_path / "kubeconfig")))
        yield server
