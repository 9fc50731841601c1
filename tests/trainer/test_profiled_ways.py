"""Each way of training looks for requests: the library, a loop of one's own, and Keras's `fit`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from support.trainer.alone import STRATEGY, examples, model, replica, train
from trainjob_trainer.checkpoint_manager import CheckpointWriter
from trainjob_trainer.custom_loop import Run
from trainjob_trainer.engine.metric_state import OverAll
from trainjob_trainer.engine.steps_per_execution import Looks
from trainjob_trainer.plain.callbacks import AtEnd
from trainjob_trainer.plain.fit_call import ModelRecord, SaveTimes, ScriptCall
from trainjob_trainer.plain.process import PlainProcess
from trainjob_trainer.reporting.progress import ProgressFile
from trainjob_trainer.resume import Start

STEPS = 4


def by_the_library(output: Path) -> None:
    train(output, STEPS, export=False)


def by_a_loop(output: Path) -> None:
    run, weights = Run(replica(output), STRATEGY, Start.nothing()), tf.Variable(1.0)
    run.track(weights=weights)
    for _ in run.steps(STEPS):
        weights.assign_add(tf.reduce_sum(tf.linalg.matmul(tf.ones([2, 2]), tf.ones([2, 2]))))


def by_fit(output: Path) -> None:
    me = replica(output)
    record = ModelRecord(1, me.store, CheckpointWriter(me))
    net = model()
    call = ScriptCall(
        record=record,
        number=1,
        epochs=1,
        metrics=OverAll(STRATEGY, net),
        times=SaveTimes(None, within_epochs=False),
        looks=Looks(lambda numbers: numbers),
    )
    process = PlainProcess(me.task, me.environment, ProgressFile(None))
    net.fit(examples().batch(2), epochs=1, verbose=0, shuffle=False, callbacks=[AtEnd(process, call, [])])


@pytest.mark.parametrize("way", [by_the_library, by_a_loop, by_fit])
def test_a_request_is_answered(way: Callable[[Path], Any], tmp_path: Path) -> None:
    folder = tmp_path / "profile"
    folder.mkdir()
    (folder / "worker-0.json").write_text(json.dumps({"id": "x", "first": 2, "last": 3}))
    way(tmp_path)
    answer = json.loads((folder / "worker-0.answer.json").read_text())
    assert (answer["state"], answer["first"]) == ("written", 2)
    assert 3 <= answer["last"] <= STEPS
    assert list((tmp_path / "logs/train").glob("plugins/profile/*/*.xplane.pb"))
