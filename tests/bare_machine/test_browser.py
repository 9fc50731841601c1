"""The browser of the testbed: when it has started, and what is said if it hasn't."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from testbed import TestbedError, browser


async def test_a_port_that_is_being_written_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, parts = tmp_path / "DevToolsActivePort", ["", "", "92", "9222", "9222\n/devtools"]

    async def write(_: float) -> None:
        file.write_text(parts.pop(0))

    monkeypatch.setattr(asyncio, "sleep", write)
    process: Any = SimpleNamespace(returncode=None)
    assert await browser._port(process, tmp_path, tmp_path / "log") == 9222
    assert parts == []


async def test_a_browser_that_ends_is_said_with_its_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("Invalid file descriptor to ICU data received.")
    process: Any = SimpleNamespace(returncode=1)
    with pytest.raises(TestbedError, match="has not started:\nInvalid file"):
        await browser._port(process, tmp_path, tmp_path / "log")
