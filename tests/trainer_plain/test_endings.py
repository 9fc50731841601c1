"""How a job's processes end: in what order they may, what they say then, and that nothing is lost by it."""

import os
from pathlib import Path

import pytest

from support.trainer.plain import SCRIPTS, run_job

SCRIPT = SCRIPTS / "endings.py"
COLD = {"PYTHONHASHSEED": "0"}
"""It isn't forked: the end of an interpreter is what is tested, and a copy's modules outlive it."""
OF_EACH = {"atexit": "written", "thread": "written", "unclosed": "written"}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("way", "last", "code"), [("fit", None, 3), ("fit", 0, 0), ("library", 1, 0), ("loop", 0, 0)]
)
def test_processes_end_as_they_would_alone(tmp_path: Path, way: str, last: int | None, code: int) -> None:
    env = {**COLD, "WAY": way, "SEEN": str(tmp_path / "seen"), "CODE": str(code)}
    if last is not None:
        os.mkfifo(tmp_path / "fifo")
        env |= {"LAST": str(last), "FIFO": str(tmp_path / "fifo")}

    ended = run_job(SCRIPT, tmp_path, env=env)

    logs = "\n".join(one.log for one in ended.values())
    assert {name: one.code for name, one in ended.items()} == {"worker-0": code, "worker-1": 0}, logs
    assert "crashed" not in logs
    assert "PeerLost" not in logs
    for index, one in enumerate(ended.values()):
        assert "the last line\n" in one.log
        seen = tmp_path / "seen" / str(index)
        assert {name: (seen / name).read_text() for name in OF_EACH} == OF_EACH
        assert sum(path.stat().st_size for path in (seen / "events").iterdir()) > 100
    states = [one.progress["state"] for one in ended.values()]
    assert states == (["preparing"] * 2 if way == "fit" else ["finished"] * 2), logs
    assert (tmp_path / "checkpoints" / "final.json").exists() == (code == 0)
    if way == "fit":
        assert (tmp_path / "model" / "model.keras").is_file()
        assert (tmp_path / "model" / "saved_model").is_dir()
