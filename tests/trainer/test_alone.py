"""One process by itself, through both ways into the library; nothing of it outlasts a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from support.trainer.alone import STRATEGY, examples, model, replica, train
from support.trainer.processes import jsonl
from trainjob_trainer import CheckpointMismatch, Run
from trainjob_trainer.checkpoint.snapshot import NamedArray
from trainjob_trainer.checkpoint.store import FinalMarker
from trainjob_trainer.data.source import only_first
from trainjob_trainer.library import _for_smoke, _Request, _train
from trainjob_trainer.recipe import Recipe
from trainjob_trainer.resume import Start


def test_another_model_leaves_a_finished_output_finished(tmp_path: Path) -> None:
    alone = replica(tmp_path)
    alone.store.save(2, 1, {"model": [NamedArray("a", np.zeros(2, "float32"))], "optimizer": []}, "old")
    alone.store.mark_final(FinalMarker(2, "old"))

    with pytest.raises(CheckpointMismatch):
        train(tmp_path, steps=4)

    assert alone.store.final() is not None


def test_what_the_script_has_changed_since_its_checkpoint_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def faster() -> Any:
        net = model()
        net.compile(keras.optimizers.SGD(10.0, nesterov=True), "mse")
        return net

    def fewer() -> Any:
        return examples().take(6)

    train(tmp_path, steps=2)
    assert "in the script and was" not in capsys.readouterr().err

    class Set(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras names it
            self.model.optimizer.learning_rate = 10.0

    def go_on(steps: int, callbacks: tuple[Any, ...] = ()) -> tuple[Any, list[str]]:
        recipe = Recipe(steps=steps, global_batch=2, seed=2)
        request = _Request(faster, fewer, fewer, recipe, callbacks=callbacks)
        trained = _train(replica(tmp_path), STRATEGY, request)
        lines = capsys.readouterr().err.splitlines()
        return trained, [line for line in lines if "in the script and was" in line]

    trained, said = go_on(4)
    assert [line.partition(" until here")[0] for line in said] == [
        "trainjob: global batch is 2 in the script and was 4",
        "trainjob: learning rate is 10 in the script and was 0.01",
        "trainjob: nesterov is True in the script and was False",
        "trainjob: number of examples is 6 in the script and was 8",
        "trainjob: seed is 2 in the script and was 1",
    ]
    assert "the checkpoint's. To have the script's, set model.optimizer.learning_rate" in said[1]
    assert float(trained.model.optimizer.learning_rate) == pytest.approx(0.01)
    trained, again = go_on(6, (Set(),))
    assert again == [said[1]], "what the checkpoint has kept still isn't the script's"
    assert float(trained.model.optimizer.learning_rate) == 10.0


def test_a_second_loop_goes_on_where_the_first_one_ended(tmp_path: Path) -> None:
    run = Run(replica(tmp_path), STRATEGY, Start.nothing())
    run.track(counter=tf.Variable(0))

    assert list(run.steps(3)) == [0, 1, 2]
    assert list(run.steps(5)) == [3, 4]


def test_a_smoke_test_takes_one_step_and_reads_one_batch_of_everything(tmp_path: Path) -> None:
    furthest = {"train": 0, "heldout": 0, "test": 0}

    def counted(name: str) -> Any:
        def load() -> Any:
            for number in range(1, 1000):
                furthest[name] = max(furthest[name], number)
                yield np.full(3, number, "float32"), np.zeros(1, "float32")

        spec = (tf.TensorSpec([3]), tf.TensorSpec([1]))
        return lambda: tf.data.Dataset.from_generator(load, output_signature=spec)

    recipe = Recipe(epochs=50, global_batch=4, patience=3)
    request = _Request(model, counted("train"), counted("heldout"), recipe, counted("test"))
    trained = _train(replica(tmp_path), STRATEGY, _for_smoke(request))

    assert trained.step == 1
    assert furthest == {"train": 4, "heldout": 4, "test": 4}
    *_, result = jsonl(tmp_path / "evaluator" / "evaluations.jsonl")
    assert set(result["metrics"]) == {"loss", "test_loss"}
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["model.keras", "saved_model"]


def test_a_smoke_test_leaves_data_that_takes_the_step_endless() -> None:
    def load(step: int) -> Any:
        return examples().repeat().skip(step)

    assert only_first(load, 4) is load


def test_a_smoke_test_of_a_loop_takes_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAIN_SMOKE", "true")
    monkeypatch.setenv("TRAINJOB_OUTPUT_DIR", str(tmp_path))
    run = Run(replica(tmp_path), STRATEGY, Start.nothing())
    run.track(counter=tf.Variable(0))

    assert list(run.steps(1000, checkpoint_every=100)) == [0]
    assert (tmp_path / "checkpoints" / "step-00000001").is_dir()
