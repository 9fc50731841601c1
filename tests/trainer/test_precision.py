from __future__ import annotations

from types import SimpleNamespace

import keras
import pytest

from trainjob_trainer import InvalidConfiguration
from trainjob_trainer.precision import refuse_loss_scaling

ONE, TWO = SimpleNamespace(num_replicas_in_sync=1), SimpleNamespace(num_replicas_in_sync=2)


def float16_model(auto_scale_loss: bool = True) -> keras.Model:
    dense = keras.layers.Dense(1, dtype="mixed_float16")
    model = keras.Sequential([keras.Input((2,)), dense])
    model.dtype_policy = keras.DTypePolicy("mixed_float16")
    model.compile("sgd", "mse", auto_scale_loss=auto_scale_loss)
    return model


def test_loss_scaling_is_refused_where_it_would_hang() -> None:
    with pytest.raises(InvalidConfiguration, match="mixed_bfloat16"):
        refuse_loss_scaling(float16_model(), TWO)

    refuse_loss_scaling(float16_model(), ONE)
    refuse_loss_scaling(float16_model(auto_scale_loss=False), TWO)
    refuse_loss_scaling(SimpleNamespace(), TWO)
