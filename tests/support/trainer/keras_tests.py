"""Keras's own tests, from the installed wheel, as forms: `module:TestCase.test`.

As a program it prints the names of the tests in the modules that it is given.
"""

import functools
import importlib.util
import json
import os
import sys
import traceback
import types
import unittest
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.src.testing import test_case

sys.modules.setdefault("jax", types.ModuleType("jax"))  # imported by tests that use it on JAX alone


_under: list[Any] = []
_set_up = test_case.TestCase.setUp


def _set_up_under_strategy(self: Any) -> None:
    _set_up(self)  # it clears Keras's session, which forgets the strategy
    tf.distribute.experimental_set_strategy(_under[-1])


test_case.TestCase.setUp = _set_up_under_strategy


def __getattr__(name: str) -> Callable[..., dict[str, Any]]:
    """A form of that name; what Keras's test expects is what it compares."""
    module, _, test = name.partition(":")
    kind, _, method = test.partition(".")

    def form(scope: Callable[[], Any]) -> dict[str, Any]:
        case, result = getattr(_loaded(module), kind)(method), unittest.TestResult()
        with scope():
            _under.append(tf.distribute.get_strategy() if tf.distribute.has_strategy() else None)
        missed: list[str] = []
        if json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index"):
            for expects in ("assertTrue", "assertFalse", "assertEqual", "assertAllClose", "assertIn"):
                setattr(case, expects, _going_on(getattr(case, expects), missed))
        case.run(result)
        tf.distribute.experimental_set_strategy(None)
        for trace in [*missed, *(trace for _, trace in (*result.errors, *result.failures))]:
            raise AssertionError(trace.strip().splitlines()[-1] + "\n" + trace[-2000:])
        return {}

    return form


def _going_on(expects: Callable[..., None], missed: list[str]) -> Callable[..., None]:
    """Let a worker go on with a test whose expectation it misses: worker 0 would wait for it."""

    def noting(*values: Any, **words: Any) -> None:
        try:
            expects(*values, **words)
        except AssertionError:
            missed.append(traceback.format_exc())

    return noting


@functools.cache
def _loaded(module: str) -> types.ModuleType:
    """The module under its short name: its models are no part of Keras."""
    spec = importlib.util.spec_from_file_location(
        module.rpartition(".")[2], importlib.util.find_spec(module).origin
    )
    loaded = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def names_in(module: str) -> list[str]:
    """The tests of a module that Keras runs on TensorFlow."""
    loader, found = unittest.TestLoader(), _loaded(module)
    return [
        f"{module}:{type(case).__name__}.{case._testMethodName}"
        for suite in loader.loadTestsFromModule(found)
        for case in suite
        if not any(
            mark.name == "skip" or (mark.name == "skipif" and mark.args[0])
            for mark in getattr(getattr(case, case._testMethodName), "pytestmark", ())
        )
    ]


if __name__ == "__main__":
    print("\n".join(name for module in sys.argv[1:] for name in names_in(module)))
