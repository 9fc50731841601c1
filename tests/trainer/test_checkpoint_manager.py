from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainjob_trainer import Environment, Task
from trainjob_trainer.checkpoint_manager import (
    AGENT_PATIENCE,
    PEER_PATIENCE,
    WRITER_PATIENCE,
    CheckpointWriter,
)

GENERATION = {"TRAINJOB_GENERATION": "2.2"}
AGENT = {"TRAINJOB_STATE_DIR": "/run/trainjob/state"}


@pytest.mark.parametrize(
    ("index", "env", "seconds"),
    [
        (0, {}, WRITER_PATIENCE),
        (1, {}, PEER_PATIENCE),
        (0, GENERATION, WRITER_PATIENCE),
        (1, GENERATION, PEER_PATIENCE),
        (0, {**GENERATION, **AGENT}, AGENT_PATIENCE),
        (1, {**GENERATION, **AGENT}, AGENT_PATIENCE),
    ],
)
def test_only_with_an_agent_a_step_may_take_the_whole_grace(
    index: int, env: dict[str, str], seconds: float
) -> None:
    """Without one the kubelet's SIGKILL may come at any time after the default grace."""
    task = Task("worker", index, {"worker": ("a:1", "b:1")})
    stop = SimpleNamespace(patience_seconds=0.0, is_futile=None)
    process: Any = SimpleNamespace(task=task, stop=stop, environment=Environment.from_environment(env, task))
    store: Any = None
    with CheckpointWriter(process, store).patient():
        assert stop.patience_seconds == seconds
    assert stop.patience_seconds == 0.0
