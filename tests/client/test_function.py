"""What can't travel is refused when it is packed, with what to write instead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
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
            ("uses 'TRAIN_SET'", "a tf.data data set can't be sent", "inside the function"),
        ),
        (uses_it_in_a_helper, {}, ("uses 'TRAIN_SET' (in uses_a_global_data_set)",)),
        (_closes_over(TRAIN_SET), {}, ("uses 'value'", "a tf.data data set can't be sent")),
        (echo, {"train": TRAIN_SET}, ("uses the argument 'train'", "a tf.data data set can't be sent")),
        (uses_a_strategy, {}, ("uses 'STRATEGY'", "a strategy can't be sent", "inside the function")),
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


# What a function is, the same in each process.


CELL = """
import functools, json, sys
import numpy as np
from trainjob.client.function import pack_function

RATE = 0.5
NAMES = {"b", "a", "c"}
TABLE = np.arange(3)

class Layer:
    size = 3
    def __init__(self):
        self.own = 1
    def __call__(self, x):
        return x * self.size

LAYER = Layer()

def helper(x):
    return x if x in ("a", "b") else RATE

def build(factor):
    def train(lr, names=("x",)):
        # a remark
        known = [n for n in names if n in {"x", "y"}]
        return Layer()(lr) * factor, helper(names), NAMES, TABLE, known, unused.RATES
    return train

class unused:
    RATES = 1

RATES = history = 1
function, kwargs = build(2), {"lr": 0.01, "deep": {"a": {3, 4}}, "layers": [LAYER]}
identity = pack_function(function, kwargs)[".trainjob/function.json"]
print(json.dumps(json.loads(identity)["identity"]))
"""


RUN_ALL = "import json, sys\nfor cell in json.load(sys.stdin): exec(cell)"


def _identify(cells: Sequence[str], seed: str) -> list[dict[str, Any]]:
    """Return what each cell prints; all are run in one other process."""
    found = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        env={**os.environ, "PYTHONHASHSEED": seed},
        input=json.dumps(cells),
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in found.stdout.splitlines()]


CHANGES = [
    ("# a remark", "# another one", ""),
    ("\nRATE", "\n\n\nRATE", ""),
    ('{"b", "a", "c"}', '{"c", "b", "a"}', ""),
    ("RATES = history = 1", "RATES = history = 2", ""),  # only attributes have these names
    ("RATE = 0.5", "RATE = 0.6", "function"),
    ('"c"}', '"d"}', "function"),
    ("arange(3)", "arange(4)", "function"),
    ("size = 3", "size = 4", "function layers"),
    ("self.own = 1", "self.own = 2", "function layers"),
    ("x * self.size", "x + self.size", "function layers"),
    ('("a", "b") else', '("a", "c") else', "function"),
    ("build(2)", "build(3)", "function"),
    ('names=("x",)', 'names=("y",)', "function"),
    ("build(2)", "functools.partial(build(2), names=())", "function"),
    ('{"x", "y"}', '{"x", "z"}', "function"),
    ('"lr": 0.01', '"lr": 0.02', "lr"),
    ("{3, 4}", "{3, 5}", "deep"),
    ("[LAYER]", "[LAYER, LAYER]", "layers"),
]
"""What is replaced by what, and the parts of the request that differ then."""


def test_a_function_is_known_by_what_it_does() -> None:
    (first,) = _identify([CELL], "1")
    assert first["kwargs"]["lr"] == 0.01
    changed = [CELL.replace(old, new) for old, new, _ in CHANGES]
    assert CELL not in changed
    for (old, new, differs), second in zip(CHANGES, _identify(changed, "2"), strict=True):
        different = {name for name in first["kwargs"] if first["kwargs"][name] != second["kwargs"][name]}
        different |= {"function"} if first["function"] != second["function"] else set()
        assert different == set(differs.split()), f"{old} -> {new}"
