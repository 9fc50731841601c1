"""A job's checkpoints, loaded into a model of one's own."""

import shutil
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from support.trainer.alone import model, train
from trainjob_trainer import CheckpointMismatch, CheckpointUnreadable, load_checkpoint


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("trained")
    return folder / "checkpoints", train(folder, epochs=2, checkpoint_every=2).model


def test_the_newest_one_with_its_optimizer(trained: tuple[Path, Any]) -> None:
    folder, expected = trained
    loaded = model()
    assert load_checkpoint(loaded, folder) == 4
    np.testing.assert_array_equal(loaded.get_weights()[0], expected.get_weights()[0])
    assert int(loaded.optimizer.iterations) == 4


def test_one_of_them(trained: tuple[Path, Any]) -> None:
    folder, expected = trained
    loaded = model()
    assert load_checkpoint(loaded, str(folder / "step-00000002")) == 2
    assert int(loaded.optimizer.iterations) == 2
    assert not np.array_equal(loaded.get_weights()[0], expected.get_weights()[0])


def test_a_model_that_is_not_compiled_has_the_weights(trained: tuple[Path, Any]) -> None:
    folder, expected = trained
    loaded = keras.Sequential.from_config(model().get_config())
    assert load_checkpoint(loaded, folder) == 4
    np.testing.assert_array_equal(loaded.get_weights()[0], expected.get_weights()[0])


def test_a_damaged_one_is_passed_over(trained: tuple[Path, Any], tmp_path: Path) -> None:
    shutil.copytree(trained[0], tmp_path / "checkpoints")
    newest = tmp_path / "checkpoints" / "step-00000004"
    (newest / "manifest.json").write_text("{}", encoding="utf-8")
    with pytest.warns(RuntimeWarning, match="damaged checkpoint"):
        assert load_checkpoint(model(), tmp_path / "checkpoints") == 2
    with pytest.raises(CheckpointUnreadable, match="step-00000004"):
        load_checkpoint(model(), newest)


@pytest.mark.parametrize("name", ["absent", "step-00000009", "step-x"])
def test_where_there_is_none(name: str, trained: tuple[Path, Any]) -> None:
    with pytest.raises(CheckpointUnreadable, match=name):
        load_checkpoint(model(), trained[0] / name)


def test_another_model_is_refused_and_left_alone(trained: tuple[Path, Any]) -> None:
    def compiled(size: int, optimizer: str) -> Any:
        other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(size)])
        other.compile(optimizer, "mse")
        return other

    for other, words in (
        (compiled(2, "sgd"), "model: .* it was written by another model"),
        (compiled(1, "rmsprop"), "optimizer: "),
        (keras.Sequential([keras.layers.Dense(1)]), "build it first"),
    ):
        before = other.get_weights()
        with pytest.raises(CheckpointMismatch, match=words):
            load_checkpoint(other, trained[0])
        for one, again in zip(before, other.get_weights(), strict=True):
            np.testing.assert_array_equal(one, again)
