"""A training that begins with the weights of another one."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest

from support.trainer.alone import model, train
from trainjob_trainer import InvalidConfiguration


@pytest.mark.filterwarnings("ignore:.*__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("name", ["earlier.keras", "earlier.weights.h5"])
def test_it_begins_with_them_and_goes_on_from_its_own_checkpoints(
    tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    earlier = model()
    earlier.set_weights([np.full((3, 1), 7.0), np.full(1, 5.0)])
    path = str(tmp_path / name)
    earlier.save(path) if name.endswith(".keras") else earlier.save_weights(path)

    first = train(tmp_path / "output", steps=1, initial_weights=path, export=False).model
    assert f"trainjob: begins with the weights of {path}" in capfd.readouterr().err
    np.testing.assert_allclose(first.get_weights()[0], 7.0, atol=2.0)
    train(tmp_path / "output", steps=2, initial_weights=path, export=False)
    assert "begins with" not in capfd.readouterr().err


@pytest.mark.filterwarnings("ignore:.*__array__ implementation:DeprecationWarning")
def test_what_cannot_be_begun_with_is_refused(tmp_path: Path) -> None:
    other = keras.Sequential([keras.Input((9,)), keras.layers.Dense(4)])
    other.save(tmp_path / "other.keras")
    for name, words in {
        "other.keras": r"initial_weights: .*other\.keras doesn't fit the model: ",
        "absent.keras": r"initial_weights: worker-0 finds no file .*absent\.keras",
        "checkpoint": r"initial_weights: .*checkpoint is none of \.keras or \.weights\.h5",
    }.items():
        with pytest.raises(InvalidConfiguration, match=words):
            train(tmp_path / "output", steps=1, initial_weights=str(tmp_path / name))
