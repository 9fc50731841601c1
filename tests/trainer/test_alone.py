"""One process by itself, through both ways into the library; nothing of it outlasts a test."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from support_alone import STRATEGY, replica, train

from trainjob_trainer import CheckpointMismatch, Run
from trainjob_trainer.checkpoint.final import FinalMarker
from trainjob_trainer.checkpoint.snapshot import NamedArray
from trainjob_trainer.resume import Start


def test_another_model_leaves_a_finished_output_finished(tmp_path: Path) -> None:
    alone = replica(tmp_path)
    alone.store.save(2, 1, {"model": [NamedArray("a", np.zeros(2, "float32"))], "optimizer": []}, "old")
    alone.store.mark_final(FinalMarker(2, "old"))

    with pytest.raises(CheckpointMismatch):
        train(tmp_path, steps=4)

    assert alone.store.final() is not None


def test_a_second_loop_goes_on_where_the_first_one_ended(tmp_path: Path) -> None:
    run = Run(replica(tmp_path), STRATEGY, Start.nothing())
    run.track(counter=tf.Variable(0))

    assert list(run.steps(3)) == [0, 1, 2]
    assert list(run.steps(5)) == [3, 4]
