"""A job's NetworkPolicy: there before its pods, and never somebody else's."""

from __future__ import annotations

from support_jobs import build_plain_job
from support_world import World

from trainjob.core.settings import Isolation, Settings

ISOLATED = Settings(isolation=Isolation("trainjob-system"))


async def test_the_policy_is_created_before_the_pods() -> None:
    world = World(build_plain_job(), settings=ISOLATED)
    await world.settle()
    kinds = [write.split()[1] for write in world.cluster.writes if write.startswith("create")]
    assert kinds == ["Service", "NetworkPolicy", "Pod", "Pod", "Pod"]


async def test_without_the_setting_there_is_none() -> None:
    world = await World(build_plain_job()).started()
    assert world.cluster.find("NetworkPolicy", world.key) is None


async def test_a_policy_of_somebody_else_holds_the_job_up_and_says_so() -> None:
    world = World(build_plain_job(), settings=ISOLATED)
    world.cluster.put(
        {"kind": "NetworkPolicy", "metadata": {"name": "digits", "namespace": "default"}, "spec": {}}
    )
    await world.settle()
    assert not world.pods
    assert "NetworkPolicy digits exists and isn't this job's" in (world.status.message or "")


async def test_where_policies_are_switched_off_one_of_that_name_is_no_obstacle() -> None:
    world = World(build_plain_job())
    world.cluster.put(
        {"kind": "NetworkPolicy", "metadata": {"name": "digits", "namespace": "default"}, "spec": {}}
    )
    await world.started()
    assert world.status.state == "Running"
