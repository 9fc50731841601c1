"""Who is warned of batch statistics."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from trainjob_trainer.keras.model import tell_unsynchronized


def build(**settings: Any) -> Any:
    layers = keras.layers
    inner = keras.Sequential([keras.Input((3,)), layers.BatchNormalization(name="deep", **settings)])
    return keras.Sequential([keras.Input((3,)), inner, layers.BatchNormalization(name="norm", **settings)])


@pytest.mark.parametrize(
    ("model", "replicas", "expected"),
    [
        (build(), 2, "trainjob: deep, norm: BatchNormalization normalizes each worker's part"),
        (build(), 1, ""),
        (build(synchronized=True), 2, ""),
        (build(trainable=False), 2, ""),
    ],
)
def test_it_is_said_where_it_matters(
    model: Any, replicas: int, expected: str, capfd: pytest.CaptureFixture[str]
) -> None:
    tell_unsynchronized(model, replicas)
    printed = capfd.readouterr().err
    assert printed.startswith(expected)
    assert bool(printed) is bool(expected)
