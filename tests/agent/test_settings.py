"""The agent's settings, and its errors for wrong ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.golden import Golden
from trainjob_trainer.agent.settings import Address, Settings, read_settings
from trainjob_trainer.errors import InvalidConfiguration

AGENT = {
    "replica": "worker-1",
    "incarnation": 3,
    "pod": "digits-worker-1-ab12cd34",
    "address": "digits-worker-1.digits.default.svc:2223",
    "leader": "digits-worker-0.digits.default.svc:2223",
    "maxRestarts": 3,
    "stallTimeoutSeconds": None,
    "warmStandby": False,
    "graceSeconds": 30,
    "restarts": {"attempt": 2, "counted": 1},
}
CLUSTER = {"worker": ["w0:2222", "w1:2224"], "evaluator": ["e0:2222"]}
CONFIG = {"cluster": CLUSTER, "task": {"type": "worker", "index": 0}}


def read(
    bundle: Path,
    *,
    cluster: Any = CLUSTER,
    replica: str = "worker-1",
    command: tuple[str, ...] = ("python", "x.py"),
    **changes: Any,
) -> Settings:
    (bundle / "token").write_text(" secret\n")
    role, _, index = replica.rpartition("-")
    env = {
        "TRAINJOB_AGENT": json.dumps({**AGENT, **changes}),
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": int(index)}}),
    }
    return read_settings(command, env, bundle)


def test_all_settings_are_read(tmp_path: Path) -> None:
    settings = read(tmp_path)
    assert (settings.task.replica, settings.incarnation) == ("worker-1", 3)
    assert settings.address == Address("digits-worker-1.digits.default.svc", 2223)
    assert (settings.tf_port, settings.token, settings.grace) == (2224, "secret", 30)
    assert (settings.counts.attempt, settings.counts.counted) == (2, 1)
    assert (settings.task.is_writer, settings.task.is_evaluator) == (False, False)
    assert settings.stall_timeout is None
    assert (settings.beat_seconds, settings.lost_seconds) == (1, 10)
    assert settings.state_dir == Path("/run/trainjob/state")


@pytest.mark.parametrize(
    ("replica", "cluster", "leads"),
    [
        ("worker-0", {"worker": ["a:1"]}, True),
        ("worker-0", {"chief": ["c:1"], "worker": ["a:1"]}, False),
        ("chief-0", {"chief": ["c:1"], "worker": ["a:1"]}, True),
        ("ps-0", {"chief": ["c:1"], "worker": ["a:1"], "ps": ["p:1"]}, False),
        ("evaluator-0", CLUSTER, False),
    ],
)
def test_which_agent_leads(replica: str, cluster: Any, leads: bool, tmp_path: Path) -> None:
    assert read(tmp_path, replica=replica, cluster=cluster).task.is_writer == leads


def test_an_ipv6_address(tmp_path: Path) -> None:
    address = read(tmp_path, address="[fd00::1]:2223").address
    assert (address, str(address)) == (Address("fd00::1", 2223), "[fd00::1]:2223")


@pytest.mark.parametrize(
    "changes",
    [
        {"replica": "boss-0"},
        {"replica": "worker-2"},
        {"pod": None},
        {"incarnation": "3"},
        {"graceSeconds": -1},
        {"address": "nowhere"},
        {"leader": "host:99999"},
        {"policy": {"lostSeconds": "x"}},
        {"cluster": {}},
        {"cluster": {"worker": "a:1"}},
        {"cluster": {"worker": ["a"]}},
        {"command": ()},
    ],
)
def test_a_wrong_setting_is_named(changes: dict[str, Any], tmp_path: Path, golden: Golden) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        read(tmp_path, **changes)
    golden(str(caught.value))


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"TRAINJOB_AGENT": "{"},
        {"TRAINJOB_AGENT": "[]"},
        {"TRAINJOB_AGENT": json.dumps(AGENT)},
        {"TRAINJOB_AGENT": json.dumps(AGENT), "TF_CONFIG": json.dumps(CONFIG)},
    ],
)
def test_a_missing_setting_is_named(env: dict[str, str], tmp_path: Path, golden: Golden) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        read_settings(["true"], env, tmp_path)
    golden(str(caught.value))
