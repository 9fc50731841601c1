"""The objects that bring agents into a job's pods: when they come, of which version, and when they go."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from support.golden import Golden
from support.world.jobs import build_job, build_plain_job
from support.world.world import World
from trainjob.cluster import AlreadyExists, ClusterError, JobKey, Refused, Unavailable
from trainjob.controller.reconciler import MOST_FAILED_PASSES
from trainjob.core.agent import AgentSource, program_name, read_source, secret_name
from trainjob.core.observed import Observed, Snapshot, read_observed
from trainjob.core.settings import Bundle, Isolation, Settings

OLD = Bundle(b"the program", b"key")
NEW = Bundle(b"a newer program", b"key")
ISOLATED = Settings(bundle=OLD, isolation=Isolation("trainjob-system"))


def world_of(job: dict[str, Any] | None = None, bundle: Bundle = OLD) -> World:
    return World(job or build_job(), Settings(bundle=bundle))


def upgrade(world: World, bundle: Bundle = NEW) -> None:
    """Another controller takes over; what was written before is forgotten."""
    world.settings = Settings(bundle=bundle)
    world.restart_controller()
    world.cluster.writes.clear()


def source_of(world: World, role: str = "worker", index: int = 0) -> AgentSource:
    source = read_source(world.pod(role, index)["spec"])
    assert source is not None
    return source


def observed(world: World) -> Observed:
    settings = world.settings or Settings()
    return read_observed(Snapshot(world.cluster.job(world.key), world.pods), settings)


def secret_of(world: World, bundle: Bundle = OLD) -> str:
    return secret_name(observed(world).meta, bundle.key)


def writes_of(world: World, *kinds: str) -> list[str]:
    return [write for write in world.cluster.writes if write.split()[1] in kinds]


async def finish(world: World) -> None:
    world.each(lambda pod: world.cluster.end_pod(pod, 0), "worker")
    await world.settle()
    world.each(lambda pod: world.cluster.end_pod(pod, 0), "evaluator")
    await world.settle()
    assert world.status.state == "Complete"


async def test_the_objects_of_a_new_job_are_created_at_once_but_for_the_token() -> None:
    world = World(build_job(), ISOLATED)
    await world.settle()
    creations = [write for write in world.cluster.writes if write.startswith("create")]
    assert creations[-1] == f"create Secret {secret_of(world)}"
    kinds = [write.split()[1] for write in creations]
    assert sorted(kinds) == sorted(["Service", "NetworkPolicy", "ConfigMap", *["Pod"] * 3, "Secret"])
    for role in ("worker", "evaluator"):
        assert source_of(world, role) == AgentSource(secret_of(world), OLD.digest)


async def test_a_pod_that_is_replaced_finds_its_token() -> None:
    world = await world_of().started()
    world.cluster.writes.clear()
    meta = {"name": secret_of(world), "uid": "", "namespace": "default"}
    world.cluster.remove({"kind": "Secret", "metadata": meta})
    world.cluster.remove(world.pod("worker", 1))
    await world.pass_time(60)
    kinds = [write.split()[1] for write in world.cluster.writes if write.startswith("create")]
    assert kinds == ["Secret", "Pod"]


OBSTACLES = {
    "refused": Refused("Forbidden", "a policy forbids it"),
    "no answer": Unavailable("no answer"),
    "taken": AlreadyExists("there is one"),
}


@pytest.mark.parametrize("error", OBSTACLES.values(), ids=OBSTACLES)
@pytest.mark.parametrize("kind", ["Service", "NetworkPolicy", "ConfigMap"])
async def test_no_pod_starts_before_all_that_it_needs_is_there(kind: str, error: ClusterError) -> None:
    """The kubelet starts no container before the token is there."""
    world = World(build_job(), ISOLATED)
    lasts = True

    def fault(operation: str, manifest: dict[str, Any]) -> ClusterError | None:
        hit = lasts and operation == "create" and manifest["kind"] == kind
        return error if hit and not (kind == "ConfigMap" and error is OBSTACLES["taken"]) else None

    world.cluster.fault = fault
    for _ in range(MOST_FAILED_PASSES + 4):
        with suppress(ClusterError):
            await world.reconciler.reconcile(world.key)
        world.restart_controller()  # at the worst time: what it remembers is lost
    is_obstacle = kind != "ConfigMap" or error is not OBSTACLES["taken"]
    assert (writes_of(world, "Secret") == []) is is_obstacle
    lasts = False
    world.let_go()
    await world.pass_time(60)
    world.each(world.cluster.run_pod)
    await world.pass_time(60)
    assert world.status.state == "Running"
    assert writes_of(world, "Secret")[0] == f"create Secret {secret_of(world)}"
    assert world.status.attempt == 1


@pytest.mark.parametrize(
    "error", [Refused("Forbidden", "a policy forbids it"), AlreadyExists("other")], ids=str
)
async def test_pods_that_came_too_early_go_again(error: ClusterError) -> None:
    world = World(build_job(), ISOLATED)
    other = {"kind": "Service", "metadata": {"name": "digits", "namespace": "default"}, "spec": {}}

    def fault(operation: str, manifest: dict[str, Any]) -> ClusterError | None:
        if (operation, manifest["kind"]) != ("create", "Service"):
            return None
        if isinstance(error, AlreadyExists):
            world.cluster.put(other)
        return error

    world.cluster.fault = fault
    with suppress(ClusterError):
        await world.reconciler.reconcile(world.key)
    assert len(world.pods) == 3
    for _ in range(3):
        with suppress(ClusterError):
            await world.reconciler.reconcile(world.key)
    world.let_go()
    assert world.pods == []
    assert world.status.conditions[0].reason in ("CreationRefused", "ServiceConflict")
    assert writes_of(world, "Secret") == []


async def test_a_token_that_failed_is_created_by_the_next_controller() -> None:
    world = world_of()
    world.cluster.fault = lambda operation, manifest: (
        Unavailable("no answer") if operation == "create" and manifest["kind"] == "Secret" else None
    )
    for _ in range(3):
        with suppress(ClusterError):
            await world.reconciler.reconcile(world.key)
        world.restart_controller()
    assert world.pods
    world.cluster.fault = lambda *_: None
    await world.started()
    assert writes_of(world, "Secret") == [f"create Secret {secret_of(world)}"]


async def test_without_agents_there_are_neither() -> None:
    world = await world_of(build_plain_job()).started()
    await finish(world)
    assert writes_of(world, "ConfigMap", "Secret") == []


@pytest.mark.parametrize("role", ["worker", "evaluator"])
async def test_a_pod_that_is_replaced_keeps_the_version_of_its_job(role: str) -> None:
    world = await world_of().started()
    upgrade(world)
    world.cluster.remove(world.pod(role))
    await world.pass_time(60)
    assert source_of(world, role) == AgentSource(secret_of(world), OLD.digest)
    # Only the controller of that version could create its program; it exists, since pods have it.
    assert writes_of(world, "ConfigMap") == []


async def test_a_job_none_of_whose_pods_lives_continues_with_the_present_version() -> None:
    world = await world_of().started()
    upgrade(world)
    world.each(world.cluster.remove)
    await world.pass_time(60)
    assert source_of(world) == AgentSource(secret_of(world), NEW.digest)
    assert writes_of(world, "ConfigMap") == [f"create ConfigMap {program_name(NEW.digest)}"]


async def test_pods_that_have_ended_do_not_hold_a_version() -> None:
    world = await world_of(build_job(evaluator=False)).started()
    upgrade(world)
    world.each(lambda pod: world.cluster.end_pod(pod, 1))
    await world.pass_time(60)
    assert source_of(world).digest == NEW.digest


async def test_a_resumed_job_continues_with_the_present_version() -> None:
    world = await world_of().started()
    world.edit(suspend=True)
    await world.settle()
    world.let_go()
    await world.settle()
    assert world.status.state == "Suspended"
    upgrade(world)
    world.edit(suspend=False)
    await world.settle()
    assert source_of(world) == AgentSource(secret_of(world), NEW.digest)


async def test_an_evaluator_that_comes_after_the_training_has_its_program_created() -> None:
    world = await world_of().started()
    upgrade(world)
    world.each(lambda pod: world.cluster.end_pod(pod, 0), "worker")
    await world.settle()
    world.cluster.remove(world.pod("evaluator"))
    await world.pass_time(60)
    assert source_of(world, "evaluator").digest == NEW.digest
    created = [write for write in world.cluster.writes if write.startswith("create")]
    assert created.index(f"create ConfigMap {program_name(NEW.digest)}") < len(created) - 1
    assert created[-1].startswith("create Pod digits-evaluator-0-")


async def test_after_the_key_was_replaced_pods_keep_the_token_of_those_that_live() -> None:
    world = await world_of().started()
    before = secret_of(world)
    upgrade(world, Bundle(b"the program", b"another key"))
    world.cluster.remove(world.pod("worker"))
    await world.pass_time(60)
    assert source_of(world) == AgentSource(before, OLD.digest)
    assert "tokenDigest" not in str(world.pod("worker")["spec"])
    assert writes_of(world, "Secret") == []


async def test_the_secret_goes_before_the_end_is_on_record_and_only_once() -> None:
    world = await world_of().started()
    await finish(world)
    deletion = f"delete Secret {secret_of(world)}"
    assert world.cluster.writes.count(deletion) == 1
    assert world.cluster.writes[-2:] == [deletion, "status TrainJob digits"]
    done = list(world.cluster.writes)
    world.restart_controller()
    await world.pass_time(3600)
    assert world.cluster.writes == done


async def test_a_job_that_ends_before_its_start_is_on_record_keeps_no_secret_either() -> None:
    world = world_of(build_job(evaluator=False))
    await world.reconciler.reconcile(world.key)
    assert world.status.start_time is None
    world.each(lambda pod: world.cluster.end_pod(pod, 0))
    await world.settle()
    assert world.status.state == "Complete"
    assert writes_of(world, "Secret")[-1] == f"delete Secret {secret_of(world)}"


async def test_a_controller_that_dies_between_the_two_leaves_no_secret() -> None:
    world = await world_of().started()
    name = secret_of(world)
    world.each(lambda pod: world.cluster.end_pod(pod, 0), "worker")
    await world.settle()
    world.each(lambda pod: world.cluster.end_pod(pod, 0), "evaluator")
    world.cluster.fault_after = lambda operation, _: RuntimeError("died") if operation == "delete" else None
    with pytest.raises(RuntimeError, match="died"):
        await world.settle()
    world.cluster.fault_after = lambda *_: None
    world.restart_controller()
    await world.settle()
    assert world.status.state == "Complete"
    assert world.cluster.writes[-2:] == [f"delete Secret {name}", "status TrainJob digits"]


async def test_a_deletion_that_is_refused_keeps_no_job_from_ending(caplog: pytest.LogCaptureFixture) -> None:
    world = await world_of().started()
    world.cluster.fault = lambda operation, manifest: (
        Refused("Forbidden", "secrets is forbidden")
        if (operation, manifest["kind"]) == ("delete", "Secret")
        else None
    )
    await finish(world)
    assert f"delete Secret {secret_of(world)}: Forbidden: secrets is forbidden" in caplog.text


async def test_a_job_that_never_began_has_none_to_delete() -> None:
    world = world_of(build_job(suspend=True))
    await world.settle()
    world.edit(worker={"replicas": -1})
    await world.settle()
    assert world.status.state == "Failed"
    assert writes_of(world, "Secret") == []


async def test_a_failed_job_keeps_no_token() -> None:
    world = await world_of(build_job(maxRestarts=0, evaluator=False)).started()
    world.each(lambda pod: world.cluster.end_pod(pod, 1))
    await world.pass_time(60)
    assert world.status.state == "Failed"
    assert writes_of(world, "Secret")[-1] == f"delete Secret {secret_of(world)}"


async def test_pods_can_not_have_other_secrets_deleted() -> None:
    """A user who may create pods, but not delete Secrets, can't have the controller do it."""
    world = await world_of().started()
    for pod in world.pods:
        (volume,) = (v for v in pod["spec"]["volumes"] if v["name"] == "trainjob-bundle")
        volume["projected"]["sources"][1]["secret"]["name"] = "theirs"
    world.cluster.put({"kind": "Secret", "metadata": {"name": "theirs"}})
    await finish(world)
    assert world.cluster.find("Secret", JobKey("default", "theirs")) is not None
    assert writes_of(world, "Secret")[-1] == f"delete Secret {secret_of(world)}"


async def test_a_job_that_waits_for_its_code_names_the_config_map(golden: Golden) -> None:
    world = world_of(build_job(code={"configMap": "digits-code-1", "digest": "0" * 64}))
    await world.settle()
    pod = world.pod("worker", 0)
    world.cluster.hold_pod(pod, "ContainerCreating", "")
    again = await world.settle()
    golden(world.status.message)
    assert again is not None
    assert again.total_seconds() <= 60
    await world.pass_time(60)
    golden(world.status.message)
