"""Pods with an agent: what it is given, how it is asked, and what it leaves behind."""

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from support.local.local_agents import BUNDLE, TOKEN, build_agent_pod, build_token_secret
from support.local.local_cluster import KEY, Lines, build_pod, ended, local_cluster, python, ref_of, until
from trainjob.cluster import AlreadyExists, JobKey, Refused, Snapshot
from trainjob.cluster.agents.poller import AgentAddress
from trainjob.cluster.local import LocalCluster

NAME = "digits-worker-0-00000001"
WORLD = {"worker": 2}


async def start(cluster: LocalCluster, lines: Lines, **pod: Any) -> None:
    """Create the bundle and a pod with the small agent, and wait until it listens."""
    await cluster.create(build_token_secret())
    await cluster.create(build_agent_pod(**pod))
    await lines.wait_for("agent of worker-0 listens")


def answer(snapshot: Snapshot) -> Any:
    """What the small agent has heard, and which pod's it is."""
    failure = (snapshot.agent_report or {}).get("failure")
    return json.loads(failure["message"]) if failure else {}


def heard(snapshot: Snapshot) -> Any:
    return answer(snapshot).get("order")


async def test_the_leading_agent_gets_the_target_and_its_report_is_seen(tmp_path: Path) -> None:
    target = {"world": WORLD, "maxRestarts": 3}
    async with local_cluster(tmp_path) as (cluster, lines):
        await start(cluster, lines)
        assert cluster.snapshot().agent_report is None
        cluster.set_target(KEY, target)
        snapshot = await until(cluster, heard)
        report = snapshot.agent_report
        assert report is not None
        assert (answer(snapshot), report["unreachableSeconds"]) == ({"order": target, "by": NAME}, 0)
        assert report["age"] >= 0
        cluster.set_target(KEY, {**target, "maxRestarts": 4})
        await until(cluster, lambda s: heard(s)["maxRestarts"] == 4)


async def test_an_order_for_another_job_is_not_ours(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, lines):
        await start(cluster, lines)
        cluster.set_target(JobKey("default", "another"), {"world": WORLD, "mine": False})
        cluster.set_target(KEY, {"world": WORLD, "mine": True})
        assert heard(await until(cluster, heard))["mine"]


async def test_an_agent_that_comes_later_gets_the_target_too(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, lines):
        cluster.set_target(KEY, {"world": WORLD})
        await start(cluster, lines)
        await until(cluster, heard)


async def test_an_agent_that_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, lines):
        await start(cluster, lines)
        cluster.set_target(KEY, {"world": WORLD, "end": 3})
        await ended(cluster, NAME)
        assert heard(cluster.snapshot())["end"] == 3
        cluster.set_target(KEY, None)
        assert cluster.snapshot().agent_report


async def test_an_agent_that_does_not_answer_is_counted_as_silent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    code = "import signal; print('up', flush=True); signal.pause()"
    async with local_cluster(tmp_path) as (cluster, lines):
        await start(cluster, lines)
        cluster.set_target(KEY, {"world": WORLD, "end": 1})
        await ended(cluster, NAME)
        await cluster.create(build_agent_pod(python(code), incarnation=2))
        snapshot = await until(cluster, lambda s: s.agent_report and s.agent_report["unreachableSeconds"] > 0)
        assert heard(snapshot)["end"] == 1
    assert not caplog.records


async def test_a_pod_without_an_agent_and_one_without_its_token_have_no_address(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(build_pod(role="worker", index=1))
        await cluster.create(build_agent_pod())
        plain, pod = cluster._store.of_kind("Pod")
        assert cluster._agent_address(pod) is None
        await cluster.create(build_token_secret())
        address = AgentAddress(pod["metadata"]["uid"], "127.0.0.1", cluster._sandbox.ports_of(pod).agent)
        assert (cluster._agent_address(plain), cluster._agent_address(pod)) == (None, address)


async def test_the_agents_environment(tmp_path: Path) -> None:
    names = ["TRAINJOB_AGENT", "TRAINJOB_POD_IP", "TRAINJOB_STATE_DIR", "TRAINJOB_TERMINATION_LOG", "BUNDLE"]
    names += ["PYTHONPATH", "TRAINJOB_PROGRESS_FILE"]
    code = f"import json, os\nprint(json.dumps([os.environ.get(name) for name in {names}]))"
    async with local_cluster(tmp_path) as (cluster, lines):
        await cluster.create(build_token_secret())
        await cluster.create(build_agent_pod(python(code)))
        await ended(cluster, NAME)
        values = dict(zip(names, json.loads(lines.seen[0][1]), strict=True))
        machine = json.loads(values["TRAINJOB_AGENT"])
        assert machine["address"] == machine["leader"]
        assert machine["address"].startswith("127.0.0.1:")
        assert values["TRAINJOB_POD_IP"] == "127.0.0.1"
        assert (values["PYTHONPATH"], values["TRAINJOB_PROGRESS_FILE"]) == (None, None)
        state, log, bundle = (Path(values[name]) for name in names[2:5])
        assert (bundle / "token").read_text() == TOKEN
        assert (bundle / "trainjob.pyz/trainjob_trainer/__init__.py").is_file()
        assert log.read_text() == ""
        assert state.is_dir()


async def test_progress_is_read_where_the_training_process_leaves_it(tmp_path: Path) -> None:
    code = """
import os, pathlib
folder = pathlib.Path(os.environ["TRAINJOB_STATE_DIR"])
(folder / "new").write_text('{"state": "training", "step": 7}')
(folder / "new").rename(folder / "progress.json")
"""
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(build_token_secret())
        await cluster.create(build_agent_pod(python(code)))
        await ended(cluster, NAME)
        assert cluster.snapshot().progress == {NAME: {"state": "training", "step": 7}}


@pytest.mark.parametrize(
    ("code", "said", "printed", "message"),
    [
        (1, '{"agent":1}', "x", '{"agent":1}'),
        (0, '{"step":440}', "x", '{"step":440}'),
        (1, "", "last line", "last line"),
        (0, "", "last line", None),
        (1, "x" * 5000 + "end\n", "", "x" * 4092 + "end"),
    ],
)
async def test_the_termination_message(
    code: int, said: str, printed: str, message: str | None, tmp_path: Path
) -> None:
    program = f"""
import os, pathlib, sys
log = pathlib.Path(os.environ["TRAINJOB_TERMINATION_LOG"])
assert log.exists()
log.write_text({said!r})
print({printed!r})
sys.exit({code})
"""
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(build_token_secret())
        await cluster.create(build_agent_pod(python(program)))
        state = await ended(cluster, NAME)
        assert (state["exitCode"], state.get("message")) == (code, message)


async def test_an_earlier_attempts_error_is_not_the_pods(tmp_path: Path) -> None:
    program = """
import os, pathlib, signal
report = '{"state": "failed", "error": {"reason": "Crashed", "message": "long ago"}}'
pathlib.Path(os.environ["TRAINJOB_STATE_DIR"], "progress.json").write_text(report)
print("just now", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(build_token_secret())
        await cluster.create(build_agent_pod(python(program)))
        assert (await ended(cluster, NAME))["message"] == "just now"


REPLACED = """
import os
log = os.environ["TRAINJOB_TERMINATION_LOG"]
os.unlink(log)
{make}
print("said", flush=True)
os._exit(1)
"""


@pytest.mark.parametrize("make", ["os.mkfifo(log)", "os.mkdir(log)", "os.symlink('/etc/passwd', log)", ""])
async def test_a_termination_log_that_was_replaced_blocks_nothing(make: str, tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(build_token_secret())
        await cluster.create(build_agent_pod(python(REPLACED.format(make=make))))
        assert (await ended(cluster, NAME))["message"] == "said"


async def test_the_log_does_not_name_an_attempt(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, lines):
        await start(cluster, lines)
        assert cluster._pods[NAME].log_path.read_text().startswith(f"--- pod {NAME}, 20")


async def test_an_agents_port_in_use_is_named(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(build_token_secret())
        cluster.prepare([build_agent_pod()])
        port = cluster._sandbox.ports_of(build_agent_pod()).agent
        with socket.create_server(("127.0.0.1", port)):
            await cluster.create(build_agent_pod())
            state = await ended(cluster, NAME)
        assert state["exitCode"] == 84
        assert f"port {port} of this machine, chosen for an agent, has been taken" in state["message"]


async def test_a_bundle_is_created_once(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(build_token_secret())
        with pytest.raises(AlreadyExists, match=f"Secret {BUNDLE} is there already"):
            await cluster.create(build_token_secret())


async def test_a_bundle_that_was_deleted_is_created_again(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, lines):
        await cluster.create(build_token_secret(token="another"))  # noqa: S106
        (secret,) = cluster._store.of_kind("Secret")
        await cluster.delete(ref_of(secret, "Secret"))
        await start(cluster, lines)
        cluster.set_target(KEY, {"world": WORLD})
        await until(cluster, heard)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"password": "x"}, "Secret other isn't supported on this machine"),
        ({"token": "x", "trainjob.pyz": "y"}, "Secret other isn't supported on this machine"),
    ],
)
async def test_other_secrets_are_refused(data: dict[str, str], reason: str, tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        with pytest.raises(Refused, match=reason):
            await cluster.create(build_token_secret("other", **data))


async def test_a_token_that_is_no_text_is_refused(tmp_path: Path) -> None:
    secret = build_token_secret()
    secret["data"]["token"] = "?"  # noqa: S105
    async with local_cluster(tmp_path) as (cluster, _):
        with pytest.raises(Refused, match="can't write the agent's files"):
            await cluster.create(secret)


async def test_nothing_of_the_bundle_is_left(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, lines):
        await start(cluster, lines)
        bundles = cluster._sandbox._machine.bundles
        assert list(bundles.iterdir())
        await cluster.close()
        assert not bundles.exists()
