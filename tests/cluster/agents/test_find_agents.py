from __future__ import annotations

from typing import Any

import pytest

from trainjob.api import AGENT_PORT
from trainjob.cluster.agents.poller import AgentAddress, JobAgents, find_agents

RUNNING: dict[str, Any] = {"running": {"startedAt": "2026-01-31T12:00:00Z"}}
ENDED: dict[str, Any] = {"terminated": {"exitCode": 0}}
WORKERS = {"worker": 2}


def pod(
    replica: str,
    *,
    incarnation: int = 1,
    state: dict[str, Any] = RUNNING,
    host: str | None = "10.0.0.1",
    live: bool = True,
) -> dict[str, Any]:
    role, _, index = replica.rpartition("-")
    labels = {
        "trainjob.dev/role": role,
        "trainjob.dev/index": index,
        "trainjob.dev/incarnation": str(incarnation),
        **({"trainjob.dev/live": "true"} if live else {}),
    }
    return {
        "metadata": {"uid": f"{replica}/{incarnation}", "labels": labels},
        "status": {"containerStatuses": [{"name": "trainer", "state": state}], "podIP": host},
    }


@pytest.mark.parametrize(
    ("pods", "world", "leader"),
    [
        ([pod("worker-0"), pod("worker-1")], WORKERS, "worker-0/1"),
        ([pod("worker-0"), pod("chief-0")], {"chief": 1, "worker": 1}, "chief-0/1"),
        ([pod("worker-0"), pod("ps-0")], {"chief": 1, "worker": 1, "ps": 1}, None),  # its chief isn't there
        ([pod("worker-0"), pod("worker-0", incarnation=2)], WORKERS, "worker-0/2"),
        ([pod("worker-0", live=False)], WORKERS, None),
        # The successor counts, though it doesn't run yet.
        ([pod("worker-0"), pod("worker-0", incarnation=2, state={"waiting": {}})], WORKERS, None),
        ([pod("worker-0", state=ENDED)], WORKERS, None),
        ([pod("worker-0", host=None)], WORKERS, None),
        ([{"metadata": {"uid": "x"}}, {"metadata": {"uid": "y", "labels": None}}], WORKERS, None),
        ([], WORKERS, None),
        ([pod("worker-1"), pod("evaluator-0"), pod("worker-0")], WORKERS, "worker-0/1"),
        ([pod("worker-1")], WORKERS, None),
        ([pod("worker-0", incarnation=n) for n in (2, 10, 1)], WORKERS, "worker-0/10"),
        ([pod("worker-0"), pod("worker-0", incarnation=2, live=False)], WORKERS, "worker-0/1"),
        ([pod("worker-0")], {}, "worker-0/1"),
    ],
)
def test_which_agent_leads(pods: list[dict[str, Any]], world: dict[str, int], leader: str | None) -> None:
    found = find_agents(pods, world).leader
    assert (found.pod if found is not None else None) == leader
    assert find_agents(reversed(pods), world).leader == found


def test_the_others_are_in_order_of_their_replicas() -> None:
    pods = [pod(name) for name in ("evaluator-0", "ps-0", "worker-10", "worker-2", "worker-1", "worker-0")]
    pods.append(pod("worker-3", state=ENDED))
    others = find_agents(pods, WORKERS).others
    assert [agent.pod for agent in others] == [
        f"{replica}/1" for replica in ("worker-1", "worker-2", "worker-10", "ps-0", "evaluator-0")
    ]


def test_who_led_and_is_being_replaced() -> None:
    pods = [
        pod("worker-0", live=False),
        pod("worker-0", incarnation=2, live=False, state=ENDED),
        pod("worker-0", incarnation=3, state={"waiting": {}}),
        pod("worker-1", live=False),
    ]
    found = find_agents(pods, WORKERS)
    assert found.leader is None
    assert [agent.pod for agent in found.replaced] == ["worker-0/1"]


def test_a_sidecar_that_runs_is_no_agent() -> None:
    ended = pod("worker-0", state=ENDED)
    ended["status"]["containerStatuses"].append({"name": "proxy", "state": RUNNING})
    assert find_agents([ended], WORKERS).leader is None
    assert find_agents([pod("worker-0", host="10.0.0.7")], WORKERS).leader == AgentAddress(
        "worker-0/1", "10.0.0.7", AGENT_PORT
    )


def test_a_pod_without_an_address_has_no_agent() -> None:
    pods = [pod("worker-0"), pod("worker-1")]
    assert find_agents(pods, WORKERS, lambda _pod: None) == JobAgents(None, ())
