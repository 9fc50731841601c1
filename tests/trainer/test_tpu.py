"""The choice of a TPU, with a resolver that plays one; this project has never run on a TPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf

from trainjob_trainer import InvalidConfiguration, Task
from trainjob_trainer.distribution.strategy import build_strategy, named_tpu

ALONE = Task("worker", 0, {})


@pytest.mark.parametrize(
    ("env", "name"),
    [
        ({}, None),
        ({"TPU_NAME": ""}, None),
        ({"TPU_NAME": "v2"}, "v2"),
        ({"TPU_NAME": "local"}, "local"),
        (
            {"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://10.0.0.1:8470", "TPU_NAME": "v2"},
            "grpc://10.0.0.1:8470",
        ),
        ({"TPU_WORKER_ID": "0"}, "local"),
        ({"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "a"}, "local"),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, None),
    ],
)
def test_the_environment_names_the_tpu(env: dict[str, str], name: str | None) -> None:
    assert named_tpu(env) == name


def test_a_slice_of_several_machines_is_refused() -> None:
    with pytest.raises(InvalidConfiguration, match="a TPU slice of 2 machines"):
        named_tpu({"TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "a,b"})


def played(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    """A resolver that answers, or raises."""

    def connect(name: str) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return f"{answer} {name}"

    resolvers = SimpleNamespace(TPUClusterResolver=SimpleNamespace(connect=connect))
    monkeypatch.setattr(tf.distribute, "cluster_resolver", resolvers)
    monkeypatch.setattr(tf.distribute, "TPUStrategy", lambda resolver: f"strategy of {resolver}")


def test_a_tpu_is_used_where_a_resolver_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    played(monkeypatch, "resolved")
    assert build_strategy(ALONE, {"TPU_NAME": "v2"}) == "strategy of resolved v2"


def test_nobody_is_asked_where_no_tpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    played(monkeypatch, AssertionError("asked"))
    assert build_strategy(ALONE, {}) is tf.distribute.get_strategy()


@pytest.mark.parametrize(
    "error", [ValueError("Please provide a TPU Name"), tf.errors.NotFoundError(None, None, "no TPU devices")]
)
def test_a_tpu_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    played(monkeypatch, error)
    with pytest.raises(InvalidConfiguration, match=r"names the TPU 'v2', and none answers: (Please|no TPU)"):
        build_strategy(ALONE, {"TPU_NAME": "v2"})
