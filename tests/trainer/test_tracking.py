from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf

from trainjob_trainer import InvalidConfiguration
from trainjob_trainer.custom_loop import collect_variables


def model(compiled: bool = False) -> Any:
    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    if compiled:
        net.compile("adam", "mse")
    return net


def test_an_optimizer_is_built_for_the_model_beside_it() -> None:
    groups = collect_variables({"model": model(), "optimizer": keras.optimizers.Adam()})

    assert {name: len(found) for name, found in groups.items()} == {"model": 2, "optimizer": 6}


def test_a_compiled_model_brings_its_optimizer() -> None:
    assert set(collect_variables({"net": model(compiled=True)})) == {"net", "net.optimizer"}


def test_other_things_with_variables() -> None:
    class Module(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = tf.Variable(1.0)

    counter = tf.Variable(0)
    groups = collect_variables({"module": Module(), "counter": counter, "both": [Module(), counter]})

    assert {name: len(found) for name, found in groups.items()} == {"module": 1, "counter": 1, "both": 2}


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        ({"model": keras.Sequential([keras.layers.Dense(1)])}, "the model has no variables yet"),
        ({"optimizer": keras.optimizers.Adam()}, "the optimizer has no variables yet"),
        ({"x": 3}, r"track\(x=...\): int has no variables"),
    ],
)
def test_what_has_no_variables_is_refused(objects: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidConfiguration, match=words):
        collect_variables(objects)
