"""A writer that wakes up and finds its successor's claim, or no folder any more, as real processes."""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
from testbed.waiting import until

from support.trainer.plain import BOOTSTRAP
from support.trainer.plain import SCRIPTS as PLAIN_SCRIPTS
from support.trainer.processes import WorkerGroup
from support.world.jobs import build_plain_job
from trainjob.api import parse
from trainjob.core.manifests import build_pod
from trainjob_trainer.checkpoint.store import CheckpointStore
from trainjob_trainer.contract.exits import ExitCode

pytestmark = pytest.mark.nightly
"""The claims themselves are played through, operation by operation, in `trainer/test_fence.py`."""

LIBRARY = Path(__file__).parent / "scripts" / "library_run.py", ("--epochs", "1000000"), {}
PLAIN = PLAIN_SCRIPTS / "endless.py", (), {"PYTHONPATH": str(BOOTSTRAP)}


def generation_of(attempt: int) -> Mapping[str, str]:
    """What tells the starts of a job without agents apart, from its pods."""
    job = parse(build_plain_job(uid="some-uid", workers=1))
    pod = build_pod(job, role="worker", index=0, incarnation=attempt, attempt=attempt)
    variables = {v["name"]: v["value"] for v in pod["spec"]["containers"][0]["env"]}
    return {name: variables[name] for name in ("TRAINJOB_GENERATION", "TRAINJOB_ATTEMPT", "TRAINJOB_UID")}


def contents(folder: Path, pattern: str = "*") -> Mapping[str, str]:
    shown = [path for path in folder.rglob(pattern) if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in shown}


PUBLISHED = "step-*/*"
"""A writer that was stopped in a save goes on with the file that it has open, within its claim."""


@pytest.mark.parametrize(("script", "arguments", "env"), [LIBRARY, PLAIN], ids=["library", "plain"])
def test_a_writer_that_wakes_up_late_changes_nothing_and_says_why(
    script: Path, arguments: tuple[str, ...], env: Mapping[str, str], tmp_path: Path
) -> None:
    def start(attempt: int) -> WorkerGroup:
        with_generation = {**env, **generation_of(attempt)}
        return WorkerGroup(script, tmp_path / "output", workers=1, env=with_generation, arguments=arguments)

    def saved() -> set[Path]:
        return {*checkpoints.glob("step-*/manifest.json")}

    checkpoints = tmp_path / "output" / "checkpoints"
    with start(1) as old:
        until(saved, what="a checkpoint", seconds=150)
        old["worker-0"].freeze()
        olds = saved()
        with start(2) as new:
            new["worker-0"].wait_for_line("resumed from step")
            until(lambda: saved() - olds, what="a checkpoint of the successor", seconds=150)
            new["worker-0"].freeze()
            before = contents(checkpoints)

            old["worker-0"].kill(signal.SIGCONT)

            assert old.wait() == {"worker-0": ExitCode.FENCED}, old.report
            assert contents(checkpoints) == before
            error = old.progress("worker-0")["error"]
            assert error["reason"] == "Fenced"
            assert "a newer start of this job (2.2) writes" in error["message"]

            check_unmounted(new, tmp_path / "output", tmp_path / "volume")
    assert CheckpointStore(tmp_path / "volume" / "checkpoints").latest() is not None


def test_a_job_of_another_namespace_stops_and_names_the_job_that_writes(tmp_path: Path) -> None:
    script, arguments, _ = LIBRARY

    def start(namespace: str) -> WorkerGroup:
        env = {"TRAINJOB_NAMESPACE": namespace, "TRAINJOB_GENERATION": "1.1"}
        uid = f"uid-{namespace}"
        return WorkerGroup(script, tmp_path / "output", workers=1, uid=uid, env=env, arguments=arguments)

    def saved() -> set[Path]:
        return {*(tmp_path / "output" / "checkpoints").glob("step-*/manifest.json")}

    with start("team-a"):
        until(saved, what="a checkpoint", seconds=150)
        with start("team-b") as second:
            assert second.wait() == {"worker-0": ExitCode.OUTPUT_TAKEN}, second.report
        assert "OutputTaken: job team-a/test (UID uid-team-a) writes" in second["worker-0"].output
        before = saved()
        until(lambda: saved() - before, what="a checkpoint of the job that goes on", seconds=150)


def check_unmounted(group: WorkerGroup, output: Path, volume: Path) -> None:
    """Leave a stopped writer with an empty folder where its volume was mounted: it writes nothing there."""
    output.rename(volume)
    output.mkdir()
    before = contents(volume / "checkpoints", PUBLISHED)

    group["worker-0"].kill(signal.SIGCONT)

    group["worker-0"].wait_for_line("waiting for storage: ")
    assert "its volume isn't mounted any more" in group.progress("worker-0")["waitingForStorage"]
    group["worker-0"].kill(signal.SIGTERM)
    assert group.wait() == {"worker-0": ExitCode.PREEMPTED}, group.report
    assert list(output.rglob("*")) == []
    assert contents(volume / "checkpoints", PUBLISHED) == before
