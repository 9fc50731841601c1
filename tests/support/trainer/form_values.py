"""What forms train on, and what they show of a trained model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np


def numbers(rows: int = 96, features: int = 4, seed: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Features of a normal distribution, and a linear target with some noise."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, features)).astype("float32")
    y = (x @ np.linspace(-1, 1, features) + 0.1 * random.normal(size=rows)).astype("float32")[:, None]
    return x, y


def classes(rows: int = 96, features: int = 4, kinds: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """The same features, with class numbers that depend on them."""
    x, _ = numbers(rows, features)
    return x, np.digitize(x[:, 0] + x[:, 1], np.linspace(-0.7, 0.7, kinds - 1)).astype("int64")


def dense(scope: Callable[[], Any], optimizer: Any = None, features: int = 4, **compiled: Any) -> Any:
    """The model of the forms that are about something else."""
    with scope():
        model = keras.Sequential(
            [keras.Input((features,)), keras.layers.Dense(6, activation="tanh"), keras.layers.Dense(1)]
        )
        chosen = optimizer() if callable(optimizer) else optimizer or keras.optimizers.SGD(0.05)
        model.compile(**{"optimizer": chosen, "loss": "mse", "metrics": ["mae"], **compiled})
    return model


def seen(model: Any = None, history: Any = None, **more: Any) -> dict[str, Any]:
    """An outcome: what a history holds, the weights at the end, and what else a form has seen."""
    outcome = {name: _plain(value) for name, value in more.items()}
    if history is not None:
        outcome["history"] = {
            name: [_plain(one) for one in values] for name, values in history.history.items()
        }
        outcome["epochs"] = list(history.epoch)
    if model is not None:
        outcome["weights"] = [np.array(one) for one in model.get_weights()]
    return outcome


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value if isinstance(value, (str, bool, type(None))) else np.asarray(value)
