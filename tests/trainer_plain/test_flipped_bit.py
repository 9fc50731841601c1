"""One bit of one worker's weights changes while an unmodified script trains."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.trainer.checkpoints import largest_difference
from support.trainer.plain import SCRIPTS, run_job
from trainjob_trainer import ExitCode
from trainjob_trainer.checkpoint.store import CheckpointStore

SCRIPT = SCRIPTS / "flipped.py"


@pytest.mark.nightly
def test_it_is_found_before_it_is_saved_and_training_goes_back(tmp_path: Path) -> None:
    whole, flipped = tmp_path / "whole", tmp_path / "flipped"
    for root, env, code in (
        (whole, {}, 0),  # moving statistics and masks are each worker's own: nobody is blamed for them
        (flipped, {"FLIP": "1"}, ExitCode.WEIGHTS_DIVERGED),
        (flipped, {}, 0),
    ):
        root.mkdir(exist_ok=True)
        ended = run_job(SCRIPT, root, env={**env, "TRAIN_CHECKPOINT_EVERY": "8"})  # of 8 an epoch
        assert {replica.code for replica in ended.values()} == {code}, ended["worker-0"].log
        if code:
            message = ended["worker-1"].progress["error"]["message"]
            assert message.startswith("worker-0's and worker-1's weights differ from each other's at step 24")
            assert CheckpointStore(root / "checkpoints").steps() == [8, 16]
    assert "trainjob: resumed from step 16 (epoch 2 of 5" in ended["worker-0"].log
    assert largest_difference(whole, flipped, ("model",)) < 1e-6
