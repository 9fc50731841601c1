# ruff: noqa: E501 - golden text, as it is shown
"""What goes wrong in real pods, and what people read about it: docs/troubleshooting.md has the same words."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testbed.claims import NodeCluster
from testbed.errors import TestbedError
from testbed.waiting import until

from support.kube import faults
from support.kube.faults import faulty_job, sight, with_init
from support.kube.real_pods import touch, wait_for

PAGE = Path(__file__).parents[3] / "docs" / "troubleshooting.md"
SECONDS = 90
"""Against hanging only."""

RUNNING = "jsonpath={.status.state}=Running"
RESUMABLE = "jsonpath={.status.output.checkpointStep}=30"
HEARD = "jsonpath={.status.progress.stepSeconds['worker-1']}=0.2"

LITTLE_MEMORY = {"resources": {"requests": {"cpu": "20m", "memory": "32Mi"}, "limits": {"memory": "96Mi"}}}
GPU = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
NO_IMAGE = {"image": "registry.invalid/nothing:1"}
SYNTAX_ERROR = {"command": ["python", "-c", "def train(:\n    pass"]}
NO_PYTHON = {"command": ["/train.sh"], "env": [{"name": "PATH", "value": "/nowhere"}]}
NO_VOLUME = {"volumes": [{"name": "data", "configMap": {"name": "nothing"}}]}
NO_CERTIFICATE = with_init(
    "echo no certificate; exit 3", restartPolicy="Always", startupProbe={"exec": {"command": ["false"]}}
)
WITHOUT_GROUP = {"securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}}

# What happens at once, without anybody's help.
STILLBORN = (
    faulty_job("no-image", faults.HEALTHY, workers=1, container=NO_IMAGE),
    faulty_job("no-room", faults.HEALTHY, workers=1, container=GPU, startTimeoutSeconds=5),
    faulty_job("unwritable", faults.UNWRITABLE, workers=1, claim="unwritable", pod=WITHOUT_GROUP),
    faulty_job("syntax-error", "", workers=1, container=SYNTAX_ERROR),
    faulty_job("misconfigured", faults.MISCONFIGURED, workers=1),
    faulty_job("init-fails", "", workers=1, pod=with_init("echo permission denied; exit 1"), maxRestarts=0),
    faulty_job("init-slow", "", workers=1, pod=with_init("sleep 600"), startTimeoutSeconds=20),
    faulty_job("init-image", "", workers=1, pod=with_init("true", **NO_IMAGE)),
    faulty_job("sidecar-fails", "", workers=1, pod=NO_CERTIFICATE),
    faulty_job(
        "no-volume",
        "",
        workers=1,
        pod=NO_VOLUME,
        container={"volumeMounts": [{"name": "data", "mountPath": "/data"}]},
    ),
    faulty_job("no-python", "", workers=1, container=NO_PYTHON),
    faulty_job("overdue", faults.HEALTHY, workers=1, pod={"activeDeadlineSeconds": 60}, maxRestarts=0),
)
# What happens to worker 1 of a job that trains.
STRUCK = (
    faulty_job("killed", faults.KILLED),
    faulty_job("deleted", faults.HEALTHY),
    faulty_job("greedy", faults.GREEDY, container=LITTLE_MEMORY),
    faulty_job("greedy-plain", faults.GREEDY, container=LITTLE_MEMORY, restartStrategy="Recreate"),
    faulty_job("hanging", faults.HANGING, stallTimeoutSeconds=10),
    faulty_job("frozen", faults.FROZEN, stallTimeoutSeconds=10),
    faulty_job("given-up", faults.HANGING, stallTimeoutSeconds=10, maxRestarts=0),
)

SEEN = {
    "killed": """
STATE Running  WORKERS 2/2  STEP 40  RESTARTS 1
training on 2 workers, attempt 2
Running=True AllReplicasRunning
first failure: worker-1, Killed, exitCode 137, step 40
worker 1 on node <node> was killed (SIGKILL) at step 40; restarted in place from step 30 (restart 1 of 3)
event: Restarted
""",
    "deleted": """
STATE Running  WORKERS 2/2  STEP 40  RESTARTS 0
training on 2 workers, attempt 2
Running=True AllReplicasRunning
first failure: worker-1, PodDeleted, step 40
worker 1 on node <node> had its pod deleted at step 40; restarting from step 30 (not counted against maxRestarts)
event: Restarting
""",
    "greedy": """
STATE Running  WORKERS 2/2  STEP 40  RESTARTS 1
training on 2 workers, attempt 2
Running=True AllReplicasRunning
first failure: worker-1, OutOfMemory, exitCode 137, step 40
worker 1 on node <node> ran out of memory (OOMKilled, 137) at step 40; to let its memory grow from 96Mi, set spec.worker.maxAllowed.memory; restarted in place from step 30 (restart 1 of 3)
event: Restarted
""",
    "greedy-plain": """
STATE Running  WORKERS 2/2  RESTARTS 1
training on 2 workers, attempt 2
Running=True AllReplicasRunning
first failure: worker-1, OutOfMemory, exitCode 137
worker 1 on node <node> ran out of memory (OOMKilled, 137); to let its memory grow from 96Mi, set spec.worker.maxAllowed.memory; restarting (restart 1 of 3)
event: Restarting
""",
    "hanging": """
STATE Running  WORKERS 2/2  STEP 40  RESTARTS 1
training on 2 workers, attempt 2
Running=True AllReplicasRunning
first failure: worker-1, Stalled, step 40
worker 1 on node <node> stalled (no progress for 10 s) at step 40; restarted in place from step 30 (restart 1 of 3)
event: Restarted
""",
    "frozen": """
STATE Running  WORKERS 2/2  STEP 40  RESTARTS 1
training on 2 workers, attempt 2
Running=True AllReplicasRunning
first failure: worker-1, Stalled, step 40
worker 1 on node <node> stalled (no progress for 10 s; its process is stopped) at step 40; restarted in place from step 30 (restart 1 of 3)
event: Restarted
""",
    "given-up": """
STATE Failed  WORKERS 0/2  STEP 41  RESTARTS 0
worker 1 on node <node> stalled (no progress for 10 s) at step 40; no restarts are allowed (maxRestarts: 0); resumable from step 30
Running=False Stalled
FailureTarget=True Stalled
Failed=True Stalled
first failure: worker-1, Stalled, step 40
event: Failed
""",
    "no-image": """
STATE Pending  WORKERS 0/1  RESTARTS 0
worker 0 can't start: ImagePullBackOff: Back-off pulling image "registry.invalid/nothing:1": ErrImagePull: …
Running=False ImagePullBackOff
""",
    "no-room": """
STATE Restarting  WORKERS 0/1  RESTARTS 0
worker 0 can't start: Unschedulable: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu …; yielded after 5 s (spec.startTimeoutSeconds), trying again within a minute
Running=False StartTimeout
Restarting=True StartTimeout
event: StartTimeout
""",
    "unwritable": """
STATE Failed  WORKERS 0/1  RESTARTS 2
worker 0 on node <node> can't use its output folder (exit code 82: cannot write /output/unwritable/checkpoints: Permission denied); given up after the same failure 3 times in a row
Running=False OutputUnwritable
FailureTarget=True OutputUnwritable
Failed=True OutputUnwritable
first failure: worker-0, OutputUnwritable, exitCode 82
event: Failed
""",
    "syntax-error": """
STATE Failed  WORKERS 0/1  RESTARTS 0
worker 0 on node <node> crashed (exit code 1: SyntaxError: invalid syntax); a restart can't fix that
Running=False Crashed
FailureTarget=True Crashed
Failed=True Crashed
first failure: worker-0, Crashed, exitCode 1
event: Failed
""",
    "misconfigured": """
STATE Failed  WORKERS 0/1  RESTARTS 0
worker 0 on node <node> was configured wrongly (exit code 80: global_batch: 10 examples can't be shared evenly by 4 workers or devices; use 8 or 12); a restart can't fix that
Running=False InvalidConfiguration
FailureTarget=True InvalidConfiguration
Failed=True InvalidConfiguration
first failure: worker-0, InvalidConfiguration, exitCode 80
event: Failed
""",
    "init-fails": """
STATE Failed  WORKERS 0/1  RESTARTS 0
worker 0 on node <node> failed in its init container fetch (exit code 1: permission denied); no restarts are allowed (maxRestarts: 0)
Running=False InitContainerFailed
FailureTarget=True InitContainerFailed
Failed=True InitContainerFailed
first failure: worker-0, InitContainerFailed, exitCode 1
event: Failed
""",
    "init-slow": """
STATE Pending  WORKERS 0/1  RESTARTS 0
worker 0 hasn't started yet: init container fetch has been running since <time>
Running=False SlowStart
""",
    "init-image": """
STATE Pending  WORKERS 0/1  RESTARTS 0
worker 0 can't start: ImagePullBackOff: init container fetch: Back-off pulling image "registry.invalid/nothing:1": ErrImagePull: …
Running=False ImagePullBackOff
""",
    "sidecar-fails": """
STATE Pending  WORKERS 0/1  RESTARTS 0
worker 0 can't start: CrashLoopBackOff: init container fetch ended with exit code 3: no certificate
Running=False CrashLoopBackOff
""",
    "no-volume": """
STATE Pending  WORKERS 0/1  RESTARTS 0
worker 0 hasn't started yet: FailedMount: MountVolume.SetUp failed for volume "data" : configmap "nothing" not found
Running=False SlowStart
""",
    "no-python": """
STATE Failed  WORKERS 0/1  RESTARTS 0
worker 0 on node <node> can't be started (exec: "python3": executable file not found in $PATH): the agent, which starts the command, needs python3 (3.9 or later) in the image; for an image without Python set spec.restartStrategy: Recreate; a restart can't fix that
Running=False StartError
FailureTarget=True StartError
Failed=True StartError
first failure: worker-0, StartError, exitCode 128
event: Failed
""",
    "overdue": """
STATE Failed  WORKERS 0/1  STEP 40  RESTARTS 0
worker 0 on node <node> ran longer than its pod's activeDeadlineSeconds (DeadlineExceeded) at step 40; no restarts are allowed (maxRestarts: 0); resumable from step 30
Running=False DeadlineExceeded
FailureTarget=True DeadlineExceeded
Failed=True DeadlineExceeded
first failure: worker-0, DeadlineExceeded, exitCode 143, step 40
event: Failed
""",
}


@pytest.fixture(scope="module")
def stricken(installed: NodeCluster, restricted_module: str) -> Iterator[str]:
    """A namespace in which all of this has happened, or is about to."""
    installed.claim(restricted_module, "unwritable")
    for job in (*STRUCK, *STILLBORN):
        installed.apply(job, namespace=restricted_module)
    for job in STRUCK:
        strike(installed, restricted_module, job)
    yield restricted_module
    installed.delete("tj", "--all", namespace=restricted_module)


def strike(cluster: NodeCluster, namespace: str, job: dict[str, Any]) -> None:
    """Let it happen, once the job trains and that is known."""
    name = job["metadata"]["name"]
    wait_for(cluster, namespace, name, RUNNING)
    if job["spec"].get("restartStrategy") != "Recreate":  # nobody hears a plain pod's reports
        wait_for(cluster, namespace, name, RESUMABLE)
        wait_for(cluster, namespace, name, HEARD)
    if name != "deleted":
        touch(cluster, namespace, name, f"{name}.fault")
        return
    selector = f"trainjob.dev/job={name},trainjob.dev/index=1"
    cluster.kubectl("delete", "pod", "-l", selector, "-n", namespace, "--wait=false")


@pytest.mark.parametrize("name", SEEN)
def test_what_people_see(name: str, installed: NodeCluster, stricken: str) -> None:
    if name == "unwritable" and installed.folder is None:
        pytest.skip("provisioners such as kind's let everybody write to a claim")
    expected, seen = SEEN[name].strip(), ""

    def is_as_expected() -> bool:
        nonlocal seen
        seen = sight(installed, stricken, name)
        return seen == expected

    with contextlib.suppress(TestbedError):
        until(is_as_expected, what=f"what is seen of {name}", seconds=SECONDS, every=0.5)
    assert seen == expected, _logs_of(installed, stricken, name)


def _logs_of(cluster: NodeCluster, namespace: str, name: str) -> str:
    """Return what the job's pods that are left have printed, and its events."""
    words = (
        "logs",
        "-l",
        f"trainjob.dev/job={name}",
        "-n",
        namespace,
        "--prefix",
        "--tail=100",
        "--timestamps",
    )
    return f"{cluster.kubectl(*words)}\n{cluster.kubectl('describe', f'tj/{name}', '-n', namespace)}"


@pytest.mark.parametrize("name", ["hanging", "frozen", "given-up"])
def test_the_log_says_where_a_stalled_process_was(name: str, installed: NodeCluster, stricken: str) -> None:
    selector = f"trainjob.dev/job={name},trainjob.dev/index=1"

    def has_stack() -> bool:
        log = installed.kubectl("logs", "-l", selector, "-n", stricken, "--tail=-1")
        return "most recent call first" in log and '"<string>", line' in log

    until(has_stack, what=f"the stack of {name}", seconds=SECONDS, every=0.5)


@pytest.mark.parametrize("name", SEEN)
def test_the_page_says_the_same(name: str) -> None:
    columns, *lines = SEEN[name].strip().splitlines()
    sentence = next(line for line in lines if line.startswith("worker "))
    (row,) = [row for row in PAGE.read_text().splitlines() if f"| `{sentence}` |" in row]
    shown = re.fullmatch(r"STATE (\w+)  WORKERS (\S+)(?:  STEP \d+)?  RESTARTS (\d+)", columns)
    assert shown is not None
    state, workers, restarts = shown.groups()
    assert row.startswith(f"| `{state}`, {workers}, {restarts} restart{'' if restarts == '1' else 's'} |")
