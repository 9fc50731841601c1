"""A job's NetworkPolicy: there before its pods, and never one of another owner."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from support.golden import Golden
from support.world.jobs import build_plain_job
from support.world.world import World
from trainjob.cluster import Conflict
from trainjob.core.observed import is_same_policy
from trainjob.core.settings import Isolation, Settings

RULE = {"from": [{"namespaceSelector": {}}], "ports": [{"port": 9090}]}
ISOLATED = Settings(isolation=Isolation("trainjob-system"))


async def test_the_policy_is_created_before_the_pods() -> None:
    world = World(build_plain_job(), settings=ISOLATED)
    await world.settle()
    kinds = [write.split()[1] for write in world.cluster.writes if write.startswith("create")]
    assert kinds == ["Service", "NetworkPolicy", "Pod", "Pod", "Pod"]


async def test_without_the_setting_there_is_none() -> None:
    world = await World(build_plain_job()).started()
    assert world.cluster.find("NetworkPolicy", world.key) is None


async def test_a_policy_of_another_owner_blocks_the_job_with_a_message(golden: Golden) -> None:
    world = World(build_plain_job(), settings=ISOLATED)
    world.cluster.put(
        {"kind": "NetworkPolicy", "metadata": {"name": "digits", "namespace": "default"}, "spec": {}}
    )
    await world.settle()
    assert not world.pods
    golden(world.status.message)


async def test_where_policies_are_switched_off_one_of_that_name_is_no_obstacle() -> None:
    world = World(build_plain_job())
    world.cluster.put(
        {"kind": "NetworkPolicy", "metadata": {"name": "digits", "namespace": "default"}, "spec": {}}
    )
    await world.started()
    assert world.status.state == "Running"


def policy_of(world: World) -> dict[str, Any]:
    found = world.cluster.find("NetworkPolicy", world.key)
    assert found is not None
    return found


CHANGES: dict[str, dict[str, Any]] = {
    "everybody": {"ingress": [{}]},
    "a peer more": {"ingress": [{"from": [{"podSelector": {}}]}]},
    "no rule": {"ingress": None},
    "other pods": {"podSelector": {"matchLabels": {"app": "none"}}},
    "a condition more": {"podSelector": {"matchExpressions": [{"key": "x", "operator": "Exists"}]}},
    "another type": {"policyTypes": ["Egress"]},
    "egress too": {"policyTypes": ["Ingress", "Egress"]},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
async def test_a_changed_policy_is_restored_without_a_gap(change: dict[str, Any]) -> None:
    world = await World(build_plain_job(), settings=ISOLATED).started()
    made = deepcopy(policy_of(world))
    changed = {**made, "spec": {**made["spec"], **change}}
    world.cluster.put(changed)
    before = len(world.cluster.writes)
    await world.settle()
    assert world.cluster.writes[before:] == ["replace NetworkPolicy digits"]
    assert policy_of(world)["spec"] == made["spec"]
    assert policy_of(world)["metadata"]["labels"] == made["metadata"]["labels"]
    assert world.cluster.events[-1][0] == "PutRight"


async def test_a_policy_that_is_changed_again_stays_as_it_is(golden: Golden) -> None:
    world = await World(build_plain_job(), settings=ISOLATED).started()
    changed = {**deepcopy(policy_of(world)), "spec": CHANGES["everybody"]}
    world.cluster.put(changed)
    await world.settle()
    golden(dict(world.cluster.events)["PutRight"])
    before, events = len(world.cluster.writes), len(world.cluster.events)
    for _ in range(3):
        world.cluster.put({**deepcopy(policy_of(world)), "spec": CHANGES["everybody"]})
        await world.pass_time(60)
    assert world.cluster.writes[before:] == []
    assert len(world.cluster.events) == events


async def test_an_emptied_policy_is_put_right_also_when_it_changes_once_more_meanwhile() -> None:
    world = await World(build_plain_job(), settings=ISOLATED).started()
    made = deepcopy(policy_of(world))
    world.cluster.put({**made, "spec": {}})
    conflicts = [Conflict("it has changed")]
    world.cluster.fault = lambda operation, _: (
        conflicts.pop() if operation == "replace" and conflicts else None
    )
    await world.settle()
    assert not conflicts
    assert policy_of(world)["spec"] == made["spec"]


async def test_running_jobs_follow_what_the_platform_lets_in() -> None:
    world = await World(build_plain_job(), settings=ISOLATED).started()
    world.settings = Settings(isolation=Isolation("trainjob-system", (RULE,)))
    world.restart_controller()
    await world.settle()
    assert policy_of(world)["spec"]["ingress"][1:] == [RULE]
    before = len(world.cluster.writes)
    world.settings = None
    world.restart_controller()
    await world.settle()
    assert len(world.cluster.writes) == before


MATCH = {"matchLabels": {"a": "b"}}


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        # What an API server adds, and what it leaves out.
        ({"ingress": [{"ports": [{"port": 1}]}]},
         {"ingress": [{"ports": [{"port": 1, "protocol": "TCP"}]}]}, True),
        ({"ingress": [{"from": [], "ports": []}]}, {"ingress": [{}]}, True),
        ({"ingress": []}, {}, True),
        ({"podSelector": {"matchLabels": {}}}, {"podSelector": {}}, True),
        ({"podSelector": {**MATCH, "matchExpressions": []}}, {"podSelector": MATCH}, True),
        ({"ingress": [{"from": [{"ipBlock": {"cidr": "c", "except": []}}]}]},
         {"ingress": [{"from": [{"ipBlock": {"cidr": "c"}}]}]}, True),
        # What admits other clients.
        ({"ingress": [{}]}, {"ingress": []}, False),
        ({"ingress": [{"from": [{"podSelector": {}}]}]}, {"ingress": [{"from": []}]}, False),
        ({"ingress": [{"from": [{"podSelector": {}}]}]},
         {"ingress": [{"from": [{"podSelector": {}, "namespaceSelector": {}}]}]}, False),
        ({"ingress": [{"ports": [{"port": 1}]}]},
         {"ingress": [{"ports": [{"port": 1, "protocol": "UDP"}]}]}, False),
        ({"podSelector": MATCH}, {"podSelector": {}}, False),
    ],
)  # fmt: skip
def test_specs_are_compared_as_the_api_server_stores_them(
    one: dict[str, Any], other: dict[str, Any], *, is_same: bool
) -> None:
    assert is_same_policy(one, other) is is_same
    assert is_same_policy(other, one) is is_same
