"""The optimizer's settings, precision, XLA and NaN in an unmodified script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from support.trainer.alone import process
from support.trainer.plain import SCRIPTS, Ended, run_job
from trainjob_trainer import ExitCode, InvalidConfiguration
from trainjob_trainer.keras.fit import _reaction
from trainjob_trainer.keras.not_finite import OnNan

SCRIPT = SCRIPTS / "settings.py"


def run(root: Path, workers: int = 2, **env: str) -> dict[str, Ended]:
    return run_job(SCRIPT, root, workers=workers, env={"SEEN": str(root / "seen"), **env})


def weights(root: Path, replica: str = "worker-0") -> Any:
    return np.load(root / "seen" / f"{replica}.npz")


STEPS_AND_PARTS = (
    "accumulation, own step",
    "float16, own step",
    "compiled, own step",
    "accumulation, unequal parts",
    "accumulation, own step, unequal parts",
    "compiled, unequal parts",
    "each batch, unequal parts",
)
"""With Keras's own step and equal parts, `multiprocess/test_optimizer_settings.py` has them all."""


@pytest.mark.nightly
def test_two_workers_train_as_one_with_own_steps_and_unequal_parts(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for root, workers in ((one, 1), (two, 2)):
        root.mkdir()
        ended = run(root, workers, CASES=";".join(STEPS_AND_PARTS))
        assert all(replica.code == 0 for replica in ended.values()), ended["worker-0"].log
        assert "globalBatch" not in ended["worker-0"].progress, "any number of workers can share it"
    left_out = "trainjob: XLA (jit_compile) is left out: OwnStep has a train_step of its own"
    assert ended["worker-0"].log.count(left_out) == 1
    expected, found, others = weights(one), weights(two), weights(two, "worker-1")
    for name in expected.files:
        np.testing.assert_array_equal(found[name], others[name])
        np.testing.assert_allclose(
            found[name], expected[name], atol=1e-2 if "float16" in name else 2e-6, err_msg=name
        )


@pytest.mark.parametrize("case", ["clipped", "each batch", "accumulation, own step"])
def test_nan_ends_the_script_and_names_step_and_worker(case: str, tmp_path: Path) -> None:
    ended = run(tmp_path, CASES=case, BAD_BATCH="3")
    for replica in ended.values():
        assert replica.code == ExitCode.NOT_FINITE, replica.log
        assert replica.progress["error"]["message"].startswith("step 4: the loss or a gradient of worker-1")
    assert not list((tmp_path / "checkpoints").glob("step-*"))


def test_nan_that_no_traced_step_sees_is_never_saved(tmp_path: Path) -> None:
    ended = run(tmp_path, workers=1, CASES="eager", BAD_BATCH="3")
    assert ended["worker-0"].code == ExitCode.NOT_FINITE, ended["worker-0"].log
    assert "so no checkpoint is written" in ended["worker-0"].progress["error"]["message"]
    assert not list((tmp_path / "checkpoints").glob("step-*"))


@pytest.mark.nightly
def test_nan_is_skipped_where_the_environment_says_so(tmp_path: Path) -> None:
    ended = run(tmp_path, CASES="clipped;accumulation", BAD_BATCH="3", TRAIN_ON_NAN="skip")
    for replica in ended.values():
        assert replica.code == 0, replica.log
        assert replica.progress["metrics"]["skipped_steps"] == 2
    assert all(np.isfinite(value).all() for value in weights(tmp_path).values())


@pytest.mark.parametrize(
    ("callbacks", "variable", "expected"),
    [
        ([], None, OnNan.STOP),
        ([], "skip", OnNan.SKIP),
        ([keras.callbacks.TerminateOnNaN()], None, OnNan.IGNORE),
        ([keras.callbacks.TerminateOnNaN()], "stop", OnNan.STOP),
    ],
)
def test_a_script_with_a_callback_for_nan_has_decided(
    callbacks: list[Any],
    variable: str | None,
    expected: OnNan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRAIN_ON_NAN", raising=False)
    if variable is not None:
        monkeypatch.setenv("TRAIN_ON_NAN", variable)
    assert _reaction(process(tmp_path), callbacks) is expected


def test_a_word_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAIN_ON_NAN", "never")
    with pytest.raises(InvalidConfiguration, match="TRAIN_ON_NAN: must be one of"):
        _reaction(process(tmp_path), [])
