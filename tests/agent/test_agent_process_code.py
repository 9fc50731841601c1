"""Real agents, real processes: the job's code is there before training starts, or nothing starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.agents.agent_job import Job
from trainjob.client.submission import Packed, pack

MAIN = """
import json, os, pathlib, sys
import helper
pathlib.Path(sys.argv[1]).write_text(json.dumps([helper.WORD, os.environ["PYTHONPATH"]]))
"""
FILES = {"main.py": MAIN.encode(), "helper.py": "WORD = 'grüß $5 `x` \\\\'".encode()}


def job_with(folder: Path, packed: Packed, digest: str = "") -> Job:
    settings: dict[str, Any] = {"digest": digest or packed.digest, "folder": str(folder / "unpacked")}
    job = Job(folder, {"worker": 1}, code=settings)
    (folder / "bundle" / "code.zip").write_bytes(packed.archive)
    job.command = (job.interpreter, str(folder / "unpacked/main.py"), str(folder / "said"))
    return job


def test_the_code_is_unpacked_and_its_folder_comes_first(tmp_path: Path) -> None:
    with job_with(tmp_path, pack(FILES)) as job:
        job.start()
        assert job.agents["worker-0"].wait() == 0
    said = (tmp_path / "said").read_text(encoding="utf-8")
    assert '"gr\\u00fc\\u00df $5 `x` \\\\"' in said
    assert f"bootstrap:{tmp_path / 'unpacked'}" in said


def test_other_code_ends_the_agent_before_anything_starts(tmp_path: Path) -> None:
    with job_with(tmp_path, pack(FILES), digest="0" * 64) as job:
        job.start()
        assert job.agents["worker-0"].wait() == 80
        failure = job.termination_message("worker-0")["failure"]
    assert (failure["reason"], failure["permanent"]) == ("InvalidConfiguration", True)
    assert "not the job's code (spec.code.digest): its ConfigMap was replaced" in failure["message"]
    assert not (tmp_path / "unpacked").exists()
    assert not (tmp_path / "said").exists()


def test_code_that_cant_be_written_may_come_another_time(tmp_path: Path) -> None:
    (tmp_path / "unpacked").write_text("a file where the folder should be")
    with job_with(tmp_path, pack(FILES)) as job:
        job.start()
        assert job.agents["worker-0"].wait() == 82
        failure = job.termination_message("worker-0")["failure"]
    assert not failure["permanent"]
    assert "the job's code can't be unpacked into" in failure["message"]
