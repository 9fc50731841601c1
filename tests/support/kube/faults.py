"""Jobs that something happens to, and what people see of them: no TensorFlow, so that they start at once."""

from __future__ import annotations

import re
from typing import Any

from testbed import images
from testbed.claims import NodeCluster

from support.kube.real_pods import script_job

REPORTS = """
import threading
from trainjob_trainer.edge import leave
from trainjob_trainer.errors import InvalidConfiguration, OutputUnwritable
from trainjob_trainer.reporting.progress import ProgressFile
job, first = os.environ["TRAINJOB_NAME"], attempt == "1"
progress = ProgressFile.from_environment(os.environ)
progress.keep_fresh()
def train_until(name):
    epoch = 0
    while not pathlib.Path("/output", name).exists():
        epoch = epoch % 2 + 1
        progress.update(
            state="training", step=40, step_seconds=0.2, epoch=epoch, total_steps=100, checkpoint_step=30
        )
        time.sleep(0.2)
"""
"""Always the same step, so that its messages are the same each time; the epoch is the sign of life."""

SUDDEN = """
train_until(f"{job}.fault" if first and index == 1 else "end")
FAULT
"""
"""Worker 1 fails on request, the first time."""

STALLING = """
train_until(f"{job}.fault" if first else "end")
if index == 1:
    FAULT
progress.update(step=41)
until("end")
"""
"""Worker 1 doesn't end step 40, and the other one waits for it in the next."""

KILLED = SUDDEN.replace("FAULT", "os.kill(os.getpid(), signal.SIGKILL)")
GREEDY = SUDDEN.replace("FAULT", "hoard = [bytes([1]) * 2**20 for _ in range(2**12)]")
HANGING = STALLING.replace("FAULT", "threading.Event().wait()")
FROZEN = STALLING.replace("FAULT", "os.kill(os.getpid(), signal.SIGSTOP)")
HEALTHY = SUDDEN.replace("FAULT", "pass")

UNWRITABLE = """
folder = pathlib.Path(os.environ["TRAINJOB_CHECKPOINT_DIR"])
try:
    folder.mkdir(parents=True)
except OSError as error:
    leave(None, progress, OutputUnwritable(f"cannot write {folder}: {error.strerror}"))
"""

MISCONFIGURED = """
why = "global_batch: 10 examples can't be shared evenly by 4 workers or devices; use 8 or 12"
leave(None, progress, InvalidConfiguration(why))
"""


def faulty_job(
    name: str,
    script: str,
    *,
    workers: int = 2,
    claim: str = "training",
    pod: dict[str, Any] | None = None,
    **rest: Any,
) -> dict[str, Any]:
    """Return a job of this script that reports its progress.

    Args:
        name: of the job.
        script: what its replicas run.
        workers: how many.
        claim: where its output goes.
        pod: fields of its pods that it has otherwise; their security context as a whole.
        rest: fields of its container, or of its spec.
    """
    job = script_job(name, REPORTS + script, workers=workers, **rest)
    job["spec"]["output"]["claim"]["claimName"] = claim
    job["spec"]["template"]["spec"] |= {"terminationGracePeriodSeconds": 5, **(pod or {})}
    return job


def with_init(script: str, **container: Any) -> dict[str, Any]:
    """Return fields of pods whose init container `fetch` runs this shell script."""
    init = {
        "name": "fetch",
        "image": images.operator().name,
        "command": ["sh", "-c", script],
        "resources": {"requests": {"cpu": "20m", "memory": "32Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    return {"initContainers": [{**init, **container}]}


def sight(cluster: NodeCluster, namespace: str, name: str) -> str:
    """What people see of a job: `kubectl get`, its conditions, its first failure and its latest warning.

    Names and number of nodes are masked, and what kubelets and schedulers of another version would put
    otherwise. That the job was restarting at some time depends on when the controller looked.
    """
    status = cluster.get("tj", name, namespace=namespace)["status"]
    lines = [
        *_columns(cluster.kubectl("get", "tj", name, "-n", namespace, "-o", "wide")),
        *(_condition(each) for each in status["conditions"] if each["type"] != "Restarting" or _holds(each)),
        *_first_failure(status),
        *_latest_warning(cluster.kubectl("describe", f"tj/{name}", "-n", namespace)),
    ]
    return _masked("\n".join(dict.fromkeys(lines)))  # a sentence in three places is shown once


def _holds(condition: dict[str, Any]) -> bool:
    return bool(condition["status"] == "True")


def _condition(condition: dict[str, Any]) -> str:
    return f"{condition['type']}={condition['status']} {condition['reason']}"


def _columns(table: str) -> list[str]:
    """Return what `kubectl get -o wide` shows, but for name and age; what is blank is left out."""
    header, row = table.splitlines()
    starts = [found.start() for found in re.finditer(r"\S+", header)]
    shown = {header[a:b].strip(): row[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)}
    words = [f"{name} {shown[name]}" for name in ("STATE", "WORKERS", "STEP", "RESTARTS") if shown[name]]
    return ["  ".join(words), shown["MESSAGE"]]


def _first_failure(status: dict[str, Any]) -> list[str]:
    failure = status.get("firstFailure")
    if failure is None:
        return []
    known = [f"{key} {failure[key]}" for key in ("exitCode", "step") if key in failure]
    return [f"first failure: {', '.join([failure['rank'], failure['reason'], *known])}", failure["message"]]


def _latest_warning(described: str) -> list[str]:
    rows = [line.split(maxsplit=1) for line in described.partition("Events:")[2].splitlines() if line.strip()]
    warnings = [re.split(r"\s{2,}", rest, maxsplit=3) for kind, rest in rows if kind == "Warning"]
    return [f"event: {warnings[-1][0]}", warnings[-1][-1]] if warnings else []


def _masked(text: str) -> str:
    for pattern, instead in (
        (r"on node \S+", "on node <node>"),
        (
            r"0/\d+ (nodes are available: )(?:1 node\(s\) had .*?, )?\d+ (Insufficient nvidia.com/gpu)\..*?;",
            r"0/1 \g<1>1 \2 …;",
        ),
        (r"(ErrImagePull): .*", r"\1: …"),
        (r"\d{4}-\d\d-\d\dT[\d:]+Z", "<time>"),
    ):
        text = re.sub(pattern, instead, text)
    return text
