"""The order of shuffled arrays in a script that sets its seed."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from trainjob_trainer.keras.data import JobEpochs

ROWS = np.arange(20)


@pytest.mark.parametrize("epochs", [1, 3])
def test_every_epoch_has_the_order_of_one_process_on_one_iterator_too(epochs: int) -> None:
    keras.utils.set_random_seed(3)
    adapter = ArrayDataAdapter(ROWS, batch_size=8, shuffle=True)
    expected = np.concatenate(list(adapter.get_tf_dataset().as_numpy_iterator()))
    epochs_of_data = object.__new__(JobEpochs)
    epochs_of_data.data_adapter, epochs_of_data._drawn = adapter, None
    with epochs_of_data._arrays_in_order() as needs_iterators:
        dataset = adapter.get_tf_dataset()
    assert not needs_iterators
    found = list(dataset.repeat(epochs).as_numpy_iterator())
    assert sorted(expected) == ROWS.tolist()
    assert expected.tolist() != ROWS.tolist()
    assert np.concatenate(found).tolist() == expected.tolist() * epochs
