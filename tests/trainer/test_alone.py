"""One process by itself, through both ways into the library; nothing of it outlasts a test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from support.trainer.alone import STRATEGY, examples, model, process, train
from trainjob_trainer import Run


def test_what_the_script_has_changed_since_its_checkpoint_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def faster() -> Any:
        net = model()
        net.compile(keras.optimizers.SGD(10.0, nesterov=True), "mse")
        return net

    def fewer() -> Any:
        return examples().take(6)

    train(tmp_path, epochs=1)
    assert "in the script and was" not in capsys.readouterr().err

    class Set(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002 - Keras names it
            self.model.optimizer.learning_rate = 10.0

    def go_on(epochs: int, *callbacks: Any) -> tuple[Any, list[str]]:
        trained = train(
            tmp_path, faster, fewer, None, *callbacks, uid="", epochs=epochs, global_batch=2, seed=2
        )
        lines = capsys.readouterr().err.splitlines()
        return trained, [line for line in lines if "in the script and was" in line]

    trained, said = go_on(2)
    assert [line.partition(" before:")[0] for line in said] == [
        "trainjob: global batch is 2 in the script and was 4",
        "trainjob: learning rate is 10 in the script and was 0.01",
        "trainjob: nesterov is True in the script and was False",
        "trainjob: seed is 2 in the script and was 1",
        "trainjob: steps of an epoch is 3 in the script and was 2",
    ]
    assert "the checkpoint's value. For the script's, set model.optimizer.learning_rate" in said[1]
    assert float(trained.model.optimizer.learning_rate) == pytest.approx(0.01)
    trained, again = go_on(3, Set())
    assert again == [said[1]], "what the checkpoint has kept still isn't the script's"
    assert float(trained.model.optimizer.learning_rate) == 10.0


def test_a_second_loop_goes_on_where_the_first_one_ended(tmp_path: Path) -> None:
    run = Run(process(tmp_path), STRATEGY, 0)
    run.track(counter=tf.Variable(0))

    assert list(run.steps(3)) == [0, 1, 2]
    assert list(run.steps(5)) == [3, 4]


def test_a_smoke_test_takes_one_step_and_evaluates_one_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAIN_SMOKE", "true")
    monkeypatch.setenv("TRAINJOB_OUTPUT_DIR", str(tmp_path))
    furthest = {"train": 0, "heldout": 0}

    def counted(name: str) -> Any:
        def load() -> Any:
            for number in range(1, 1000):
                furthest[name] = max(furthest[name], number)
                yield np.full(3, number, "float32"), np.zeros(1, "float32")

        spec = (tf.TensorSpec([3]), tf.TensorSpec([1]))
        return lambda: tf.data.Dataset.from_generator(load, output_signature=spec)

    words = {"epochs": 50, "shuffle": False, "export": True}
    trained = train(tmp_path, model, counted("train"), counted("heldout"), **words)

    assert trained.step == 1
    assert max(furthest.values()) < 100
    assert set(trained.metrics) == {"loss", "val_loss"}
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["model.keras", "saved_model"]


def test_a_smoke_test_of_a_loop_takes_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAIN_SMOKE", "true")
    monkeypatch.setenv("TRAINJOB_OUTPUT_DIR", str(tmp_path))
    run = Run(process(tmp_path), STRATEGY, 0)
    run.track(counter=tf.Variable(0))

    assert list(run.steps(1000, checkpoint_every=100)) == [0]
    assert (tmp_path / "checkpoints" / "step-00000001").is_dir()
