"""What can't travel is refused when it is packed, with what to write instead."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from trainjob.client.function import LARGEST, CannotPack, pack_function


def _of_tensorflow(name: str, module: str) -> Any:
    """Return an object of a class that looks like TensorFlow's: its module's name counts."""
    base = type(name, (), {"__module__": module})
    return type("Derived", (base,), {"__module__": "tensorflow.python.ops"})()


TRAIN_SET = _of_tensorflow("DatasetV2", "tensorflow.python.data.ops.dataset_ops")
STRATEGY = _of_tensorflow("StrategyBase", "tensorflow.python.distribute.distribute_lib")
LOCK = threading.Lock()
IMAGES = os.urandom(1_000_000)


def uses_a_global_data_set() -> object:
    return TRAIN_SET


def uses_it_in_a_helper() -> object:
    return uses_a_global_data_set()


def uses_a_strategy() -> object:
    return STRATEGY


def uses_a_lock() -> object:
    return [number for number in range(3) if LOCK]


def uses_images() -> int:
    return len(IMAGES)


def echo(**arguments: object) -> dict[str, object]:
    return dict(arguments)


async def is_asynchronous() -> None:
    """Return nothing."""


def _closes_over(value: object) -> Callable[[], object]:
    return lambda: value


@pytest.mark.parametrize(
    ("function", "arguments", "parts"),
    [
        (
            uses_a_global_data_set,
            {},
            ("uses 'TRAIN_SET'", "a tf.data data set can't travel", "inside the function"),
        ),
        (uses_it_in_a_helper, {}, ("uses 'TRAIN_SET' (in uses_a_global_data_set)",)),
        (_closes_over(TRAIN_SET), {}, ("uses 'value'", "a tf.data data set can't travel")),
        (echo, {"train": TRAIN_SET}, ("uses the argument 'train'", "a tf.data data set can't travel")),
        (uses_a_strategy, {}, ("uses 'STRATEGY'", "a strategy can't travel", "inside the function")),
        (uses_a_lock, {}, ("uses 'LOCK'", "cannot pickle", "create it inside the function instead")),
        (
            _closes_over(bytes(LARGEST + 1)),
            {},
            ("too large", "more than 4 MB", "uses 'value'", "load such data inside"),
        ),
        (uses_images, {}, ("more than 700,000 bytes when compressed", "uses 'IMAGES'")),
        (is_asynchronous, {}, ("is asynchronous",)),
        ("train", {}, ("a str is no function",)),
    ],
)
def test_what_cannot_travel_is_refused_with_its_name(
    function: Any, arguments: dict[str, Any], parts: tuple[str, ...]
) -> None:
    with pytest.raises(CannotPack) as refused:
        pack_function(function, arguments)
    for part in parts:
        assert part in str(refused.value)
