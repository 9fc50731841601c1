"""The end of a training is written by what sees the exit code of the writer's process."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from trainjob_trainer.agent.ending import mark_finished
from trainjob_trainer.checkpoint.fence import Fence
from trainjob_trainer.checkpoint.store import CheckpointStore, FinalMarker
from trainjob_trainer.environment import Generation
from trainjob_trainer.errors import Fenced


def env(folder: Path) -> dict[str, str]:
    return {"TRAINJOB_CHECKPOINT_DIR": str(folder), "TRAINJOB_UID": "mine"}


def final(folder: Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((folder / "final.json").read_text())
    return {name: value for name, value in facts.items() if name != "time"}


def test_it_names_the_newest_checkpoint_and_the_last_step(tmp_path: Path) -> None:
    for name in ("step-00000008", "step-00000012.1", "step-00000012", "model-2", "step-12.keras"):
        (tmp_path / name).mkdir()
    mark_finished(env(tmp_path), "1.1", 20)
    assert final(tmp_path) == {"step": 12, "endedAt": 20, "jobUid": "mine"}
    assert CheckpointStore(tmp_path).final() == FinalMarker(12, "mine", 20)


def test_a_training_that_has_chosen_its_result_keeps_it(tmp_path: Path) -> None:
    CheckpointStore(tmp_path).mark_ended(FinalMarker(4, "an earlier job", 12, 40))
    mark_finished(env(tmp_path), "1.1", 12)
    assert CheckpointStore(tmp_path).final() == FinalMarker(4, "mine", 12, 40)


def test_a_script_without_checkpoints_finishes_too(tmp_path: Path) -> None:
    mark_finished({"TRAINJOB_OUTPUT_DIR": str(tmp_path), "TRAINJOB_UID": "mine"}, "1.1")
    assert final(tmp_path / "checkpoints") == {"step": 0, "endedAt": 0, "jobUid": "mine"}


def test_without_an_output_there_is_nothing_to_write() -> None:
    mark_finished({}, "1.1")


def test_it_comes_out_of_the_processs_claim(tmp_path: Path) -> None:
    fence = Fence(tmp_path, Generation(1, 2), "mine")
    fence.claim()
    mark_finished(env(tmp_path), "1.2")
    assert final(tmp_path)["jobUid"] == "mine"
    assert [path.name for path in fence.folder.iterdir()] == ["owner.json"]


def test_a_successor_decides_about_the_end(tmp_path: Path) -> None:
    Fence(tmp_path, Generation(1, 2), "mine").claim()
    Fence(tmp_path, Generation(2, 3), "mine").claim()
    with pytest.raises(Fenced):
        mark_finished(env(tmp_path), "1.2")
    assert not (tmp_path / "final.json").exists()


def test_what_comes_first_is_done_only_by_the_newest_start(tmp_path: Path) -> None:
    """Files of a writer that a successor has replaced aren't sent over the successor's."""
    sent: list[str] = []
    Fence(tmp_path, Generation(1, 2), "mine").claim()
    mark_finished(env(tmp_path), "1.2", first=lambda: sent.append("1.2"))
    Fence(tmp_path, Generation(2, 3), "mine").claim()
    with pytest.raises(Fenced):
        mark_finished(env(tmp_path), "1.2", first=lambda: sent.append("1.2, late"))
    assert sent == ["1.2"]


def test_an_earlier_claim_is_no_successors(tmp_path: Path) -> None:
    Fence(tmp_path, Generation(1, 1), "mine").claim()
    Fence(tmp_path, Generation(9, 9), "another job").claim()
    mark_finished(env(tmp_path), "1.2")  # all of the script was done already: it has claimed nothing
    assert final(tmp_path)["jobUid"] == "mine"


@pytest.mark.parametrize(
    ("outcome", "said", "error"),
    [
        ("sent", "", None),
        ("fenced", "a newer start writes there", Fenced),
        ("", "s3://results: the bucket is away", OSError),
        ("", "", OSError),
    ],
)
def test_what_is_in_a_bucket_is_left_to_a_program_that_has_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str, said: str, error: type[Exception] | None
) -> None:
    """Its exit code isn't known where the agent's reaper was faster: then it is 0."""
    started: list[tuple[list[str], dict[str, str]]] = []

    def run(words: list[str], env: dict[str, str], **_: object) -> subprocess.CompletedProcess[bytes]:
        started.append((words, env))
        return subprocess.CompletedProcess(words, 0, stdout=outcome.encode(), stderr=said.encode())

    monkeypatch.setattr("trainjob_trainer.agent.ending.subprocess.run", run)
    variables = {**env(tmp_path), "TRAINJOB_OUTPUT_URI": "s3://results/digits", "TRAINJOB_PID": "7"}
    if error is None:
        mark_finished(variables, "1.2", 20)
    else:
        with pytest.raises(error, match=said or "was killed"):
            mark_finished(variables, "1.2", 20)
    ((words, passed),) = started
    assert words[1] == "-c"
    assert words[2].endswith("from trainjob_trainer.mirror import finish; finish(sys.argv[2:])")
    assert words[4:] == ["1.2", "20"]
    # With it the program would take itself for a process of the script's own.
    assert {"TRAINJOB_PID", "PYTHONPATH"}.isdisjoint(passed)
    assert Path(words[3], "trainjob_trainer/mirror.py").is_file()
    assert not list(tmp_path.iterdir())
