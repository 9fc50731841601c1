"""The all-reduce of `trainjob doctor --gpus`: a job of two workers, deleted once it has been measured."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trainjob.client.doctor import AllReduce, Found, Unknown
from trainjob.client.jobs import pods_of
from trainjob.client.problems import describe_problem
from trainjob.client.submission import submit
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.config import Access
from trainjob.cluster.kube.resources import TRAINJOBS
from trainjob.cluster.protocol import ClusterError
from trainjob.core.names import LABEL_JOB
from trainjob.core.pods import PodState, read_pod
from trainjob.core.script import ScriptJob, build_job
from trainjob.core.wording import printable

if TYPE_CHECKING:
    from trainjob.cluster.protocol import Manifest

WORKERS = 2

_POLL_SECONDS = 1.0
_REQUEST_SECONDS = 10.0
_LOG_BYTES = 1 << 16
_MARK = "trainjob all-reduce: "
_MEASURE = f"""
import json, os, shutil, time
import tensorflow as tf
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
used = "NCCL" if gpus else "RING"
options = tf.distribute.experimental.CommunicationOptions(
    implementation=tf.distribute.experimental.CommunicationImplementation[used])
strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
size = (256 if gpus else 16) << 20
with strategy.scope():
    values = tf.Variable(tf.ones([size // 4]))
@tf.function
def reduce():
    def one():
        gradient = tf.identity(values)
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, gradient, options)
    return strategy.run(one)
seconds = []
for _ in range(11):
    begin = time.perf_counter()
    total = float(strategy.experimental_local_results(reduce())[0][0])
    seconds.append(time.perf_counter() - begin)
devices = strategy.num_replicas_in_sync
assert total == devices, f"the sum over {{devices}} ones is {{total}}"
shutil.rmtree(os.environ["TRAINJOB_OUTPUT_DIR"], ignore_errors=True)  # the job's own
result = dict(implementation=used, devices=devices, size=size, seconds=sorted(seconds[1:])[5])
print({_MARK!r} + json.dumps(result), flush=True)
time.sleep(3600)  # until the job is deleted: a finished one would write into that folder again
"""


def build_measurement(name: str, image: str, gpus: int, output: Mapping[str, Any]) -> Manifest:
    """Return the job: its pods are on two nodes if there are two, and have what NCCL needs."""
    command = ("python", "-c", _MEASURE)
    job = build_job(
        ScriptJob(
            name=name,
            command=command,
            workers=WORKERS,
            evaluator=False,
            gpus=gpus,
            image=image,
            output=output,
        )
    )
    spec = job["spec"]
    spec["maxRestarts"] = 0
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    container["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 - NCCL's
    apart = {
        "weight": 100,
        "podAffinityTerm": {
            "labelSelector": {"matchLabels": {LABEL_JOB: name}},
            "topologyKey": "kubernetes.io/hostname",
        },
    }
    pod |= {
        "terminationGracePeriodSeconds": 2,
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [apart]}},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
    }
    return job


async def measure_all_reduce(
    access: Access, namespace: str, image: str, gpus: int, output: Mapping[str, Any], seconds: float
) -> Found[AllReduce]:
    """Have two workers sum a tensor, for so many seconds; the job is deleted, also if this is cancelled.

    Args:
        access: to the cluster.
        namespace: of the job.
        image: with TensorFlow.
        gpus: of each worker.
        output: `spec.output`; once it is measured, nothing is left there.
        seconds: for the whole.
    """
    job = build_measurement(f"trainjob-doctor-{secrets.token_hex(4)}", image, gpus, output)
    name, last = job["metadata"]["name"], ""
    async with ApiClient(access, user_agent="trainjob", timeout=_REQUEST_SECONDS) as api:
        try:
            created, _ = await submit(api, namespace, job)
            uid = created["metadata"]["uid"]
        except ClusterError as error:
            return Unknown(printable(describe_problem(error)))
        try:
            async with asyncio.timeout(seconds):
                while True:
                    status = (await api.get(TRAINJOBS, namespace, name)).get("status") or {}
                    last = printable(str(status.get("message") or ""))
                    if status.get("completionTime"):
                        return Unknown(last)
                    if (found := await _read_result(api, namespace, name, gpus)) is not None:
                        return found
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            return Unknown(f"nothing was measured in {seconds:g} s: {last or 'no controller takes the job'}")
        except ClusterError as error:
            return Unknown(printable(describe_problem(error)))
        finally:
            with suppress(ClusterError):
                await api.delete(TRAINJOBS, namespace, name, uid=uid)


async def _read_result(api: ApiClient, namespace: str, job: str, gpus: int) -> AllReduce | None:
    """Return what worker 0 has printed, or None before that."""
    manifests = await pods_of(api, namespace, job)
    pods = [pod for manifest in manifests if (pod := read_pod(manifest)) is not None]
    first = next((pod for pod in pods if pod.replica.index == 0 and pod.state is PodState.RUNNING), None)
    if first is None:
        return None
    query = {"container": "trainer", "tailLines": "50", "limitBytes": str(_LOG_BYTES)}
    async with api.log(namespace, first.name, query) as pieces:
        text = b"".join([piece async for piece in pieces]).decode(errors="replace")
    line = re.search(re.escape(_MARK) + r"(\{.*\})", text)
    if line is None:
        return None
    nodes = tuple(sorted({pod.node for pod in pods if pod.node}))
    try:
        said = json.loads(line[1])
        return AllReduce(
            implementation=printable(str(said["implementation"])),
            devices=max(int(said["devices"]), 1),
            size=int(said["size"]),
            seconds=float(said["seconds"]),
            nodes=nodes,
            asked=gpus,
        )
    except (ValueError, TypeError, KeyError):  # the image's Python isn't the one that it says
        return None
