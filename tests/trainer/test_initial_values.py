"""What workers decide about the variables that they have created; other workers are numbers here."""

from __future__ import annotations

import pytest
import tensorflow as tf

from trainjob_trainer import InvalidConfiguration
from trainjob_trainer.distribution.initial_values import build_packs, find_different, refuse_other_counts


@pytest.mark.parametrize(
    ("hashes", "expected"),
    [
        ([[1, 2, 3], [1, 2, 3]], []),
        ([[1, 2, 3], [1, 5, 3]], [1]),
        ([[1, 2], [1, 2], [0, 9]], [0, 1]),
        ([[], []], []),
    ],
)
def test_variables_of_which_a_worker_has_another_value(hashes: list[list[int]], expected: list[int]) -> None:
    assert find_different(hashes) == expected


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], []),
        ([4, 4, 4], [[0, 1], [2]]),
        ([20, 1, 20], [[0], [1], [2]]),
        ([0, 8, 0, 1], [[0, 1, 2], [3]]),
    ],
)
def test_variables_are_packed_in_their_order(sizes: list[int], expected: list[list[int]]) -> None:
    assert build_packs(sizes, 8) == expected


def test_workers_with_other_variables_are_named() -> None:
    newest = tf.Variable(1.0, name="kernel")
    refuse_other_counts([4, 4, 4], ["chief-0", "worker-0", "worker-1"], newest)
    words = r"worker-1 has created 5 variables where chief-0 has created 4 \(the newest here is kernel"
    with pytest.raises(InvalidConfiguration, match=words):
        refuse_other_counts([4, 4, 5], ["chief-0", "worker-0", "worker-1"], newest)
