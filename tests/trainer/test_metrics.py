from __future__ import annotations

import numpy as np
import tensorflow as tf

from trainjob_trainer.keras.metrics import scalars


def test_single_numbers_of_any_library_stay_and_others_go() -> None:
    metrics = {
        "loss": tf.constant(0.5),
        "accuracy": np.float32(0.25),
        "steps": 3,
        "by class": np.array([0.5, 0.25]),
        "of one class": tf.constant([0.5]),
        "nested": {"a": 1.0},
        "text": "high",
    }

    assert scalars(metrics) == {"loss": 0.5, "accuracy": 0.25, "steps": 3.0}
