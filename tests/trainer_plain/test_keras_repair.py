import json
import re
from types import SimpleNamespace
from typing import Any

import pytest

from support.trainer.plain import SCRIPTS, run_job
from trainjob_trainer.plain import keras_repair


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("canary")
    ended = run_job(SCRIPTS / "canary.py", root, env={"SEEN": str(root), "PYTHONPATH": ""})
    assert ended["worker-0"].code == 0, ended["worker-0"].log
    return json.loads((root / "worker-0.json").read_text())


def test_canary_keras_still_needs_both_repairs(seen: dict[str, Any]) -> None:
    """When this fails, Keras has mended `fit` under several workers: remove the repair."""
    assert seen["build_fault"]
    assert seen["reduce_fault"]
    assert seen["unrepaired"].startswith("ValueError")
    assert "PerReplica" in seen["unrepaired"]
    assert seen["build_repaired"].startswith("ValueError")


def test_repaired_keras_trains(seen: dict[str, Any]) -> None:
    assert seen["repaired"] == "trained"
    assert seen["known"] is True
    assert seen["again"] is True


class MendedTrainer:
    def _maybe_symbolic_build(self, iterator=None, data_batch=None):  # noqa: ARG002
        return "mended"


class ChangedTrainer:
    def _maybe_symbolic_build(self, batches):  # noqa: ARG002
        return "changed"


def mended_reduce(values, strategy, reduction):
    return values


def trainer_of(kind: type) -> Any:
    return SimpleNamespace(TensorFlowTrainer=kind, reduce_per_replica=mended_reduce)


def test_a_keras_of_another_form_is_left_alone_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    method = ChangedTrainer._maybe_symbolic_build
    assert not keras_repair.repair_keras(trainer_of(ChangedTrainer))
    assert ChangedTrainer._maybe_symbolic_build is method
    assert "has other functions than this release repairs" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["TensorFlowTrainer", "Trainer"])
def test_a_mended_keras_is_left_alone_in_silence(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = SimpleNamespace(**{name: MendedTrainer}, reduce_per_replica=mended_reduce)
    assert keras_repair.repair_keras(module)
    assert module.reduce_per_replica is mended_reduce
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("fixed", "rows", "words"),
    [
        (None, 16, None),
        (8, None, None),
        (8, 16, None),
        (16, 16, "gets 8 of a batch's 16 rows, .* exactly 16: build it with batch_size=8 "),
        (15, 15, "gets 7.5 of a batch's 15 rows, .* exactly 15: use a batch that 2 divide "),
    ],
)
def test_an_input_of_so_many_rows_is_refused_in_a_sentence(
    fixed: int | None, rows: int | None, words: str | None
) -> None:
    found = keras_repair.fixed_batch_trouble(fixed, rows, 2)
    assert found is None if words is None else re.search(words, found or "")
