"""What workers decide about the variables that they have created; other workers are numbers here."""

from __future__ import annotations

import pytest
import tensorflow as tf

from trainjob_trainer import InvalidConfiguration
from trainjob_trainer.distribution.initial_values import refuse_other_counts


def test_workers_with_other_variables_are_named() -> None:
    newest = tf.Variable(1.0, name="kernel")
    refuse_other_counts([4, 4, 4], ["chief-0", "worker-0", "worker-1"], newest)
    words = r"worker-1 has created 5 variables where chief-0 has created 4 \(the newest here is kernel"
    with pytest.raises(InvalidConfiguration, match=words):
        refuse_other_counts([4, 4, 5], ["chief-0", "worker-0", "worker-1"], newest)
