"""`trainjob doctor` on a cluster: what it has for training, whether it pulls an image, how fast workers sum.

The pod that pulls an image and the job that measures an all-reduce are deleted again, also after Ctrl-C.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple

from trainjob.api import TRAINER_CONTAINER
from trainjob.api.constants import GROUP, PLURAL
from trainjob.client.connection import ClusterOptions, find_access
from trainjob.client.doctor import (
    LOOK_SECONDS,
    NOTE,
    OK,
    PROBLEM,
    Check,
    Found,
    Unknown,
    Value,
    bounded,
    is_within,
)
from trainjob.client.jobs import pods_of
from trainjob.client.problems import describe_problem, lacks_api
from trainjob.client.submission import submit
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.config import Access
from trainjob.cluster.kube.resources import CLAIMS, PODS, SERVER_VERSION, TRAINJOBS, Resource
from trainjob.cluster.protocol import ClusterError, NotFound, allow_deep_objects
from trainjob.core.names import LABEL_JOB
from trainjob.core.pods import PodState, container_state, read_pod
from trainjob.core.script import GPU, ScriptJob, build_job, restricted_container, restricted_pod
from trainjob.core.wording import printable
from trainjob.installation.crd_update import CRDS, UNKNOWN, VERSION_ANNOTATION, read_release

if TYPE_CHECKING:
    from trainjob.cluster.protocol import Manifest

_REQUEST_SECONDS = 10.0
_POLL_SECONDS = 1.0

_DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
_CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass")
_REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview")
_CONTROLLERS = "app.kubernetes.io/name=trainjob,app.kubernetes.io/component=controller"


def check_cluster(
    where: ClusterOptions,
    image: str | None,
    seconds: float,
    *,
    needed: bool,
    gpus: int | None = None,
    output: Mapping[str, Any] | None = None,
) -> list[Check]:
    """Return the checks of the cluster that the options select.

    Args:
        where: the options.
        image: to be pulled by a pod, if any.
        seconds: for that, and then for the all-reduce.
        needed: the cluster has to be there; otherwise it is only noted that there is none.
        gpus: of each worker of an all-reduce in that image; None for none.
        output: `spec.output` of its job; None for the first claim that several nodes may write to.
    """
    allow_deep_objects()

    def find() -> Access:
        access = find_access(where)
        if access.read_token is None:
            return access
        # Once, here: a credential plugin may wait for somebody to log in.
        token = access.read_token(False)
        return replace(access, read_token=lambda _refused: token)

    access = bounded(find)
    if isinstance(access, Unknown):
        remedy = "to train in a cluster, get a kubeconfig, and name it with KUBECONFIG or --kubeconfig"
        return [Check("kubeconfig", PROBLEM if needed else NOTE, access.why, remedy)]
    namespace = where.namespace or access.namespace
    answers = bounded(lambda: asyncio.run(_look_at_cluster(access, namespace)), 4 * LOOK_SECONDS)
    if isinstance(answers, Unknown):
        return [check_server(access.server, namespace, answers)]
    checks, claims = answers
    if image is None or len(checks) == 1:
        return checks
    # In this thread: Ctrl-C has to delete the pod.
    pulled = asyncio.run(try_image(access, namespace, image, seconds))
    if gpus is None or pulled.verdict is not OK:
        return [*checks, pulled]
    output = output or ({"claim": {"claimName": claims[0]}} if claims else None)
    if output is None:
        why = Unknown(f"no claim in {namespace} supports several nodes: name an output with --job-output")
        return [*checks, pulled, check_all_reduce(why)]
    measured = asyncio.run(measure_all_reduce(access, namespace, image, gpus, output, seconds))
    return [*checks, pulled, measured]


async def _look_at_cluster(access: Access, namespace: str) -> tuple[list[Check], Sequence[str]]:
    """Return the checks that need no pod, and the claims that several nodes may write to."""
    async with ApiClient(access, user_agent="trainjob", timeout=_REQUEST_SECONDS) as api:
        answer = await _answer(api.get(SERVER_VERSION, None, ""))
        release = answer if isinstance(answer, Unknown) else str(answer.get("gitVersion", ""))
        server = check_server(access.server, namespace, release)
        if server.verdict is PROBLEM:
            return [server], ()
        crd, controllers, allowed, classes, claims = await asyncio.gather(
            _find_crd(api, namespace),
            _items(api.list(_DEPLOYMENTS, None, selector=_CONTROLLERS)),
            _find_permissions(api, namespace),
            _items(api.list(_CLASSES, None)),
            _items(api.list(CLAIMS, namespace)),
        )
    shared = [
        item["metadata"]["name"]
        for item in (() if isinstance(claims, Unknown) else claims)
        if "ReadWriteMany" in (item["spec"].get("accessModes") or ())
        and (item.get("status") or {}).get("phase") == "Bound"
    ]
    own = version("trainjob")
    checks = [server, check_crd(crd, own), check_controllers(controllers, own)]
    checks += (*check_permissions(allowed, namespace), check_storage(classes, shared, namespace))
    return checks, shared


async def _answer(request: Awaitable[Value]) -> Found[Value]:
    try:
        async with asyncio.timeout(_REQUEST_SECONDS + 1):
            return await request
    except ClusterError as error:
        return Unknown(printable(describe_problem(error)))
    except TimeoutError:
        return Unknown(f"no answer within {_REQUEST_SECONDS:g} s")


async def _items(request: Awaitable[Manifest]) -> Found[list[Manifest]]:
    answer = await _answer(request)
    return answer if isinstance(answer, Unknown) else list(answer.get("items") or ())


def check_server(server: str, namespace: str, release: Found[str]) -> Check:
    """Whether the API server answers, and its Kubernetes is new enough."""
    if isinstance(release, Unknown):
        remedy = (
            "start the cluster or connect to it (VPN, proxy, login), or choose another one with --context"
        )
        return Check("cluster", PROBLEM, f"{server}: {release.why}", remedy)
    found = f"Kubernetes {release} at {server}, namespace {namespace}"
    if is_within(release.lstrip("v"), "<1.29"):
        return Check("cluster", PROBLEM, found, "TrainJob needs Kubernetes 1.29 or newer: upgrade it")
    return Check("cluster", OK, found)


async def _find_crd(api: ApiClient, namespace: str) -> Found[str | None]:
    """Return the release of the CRD, empty if it has none; None if there is no CRD."""

    async def read() -> str | None:
        try:
            crd = await api.get(CRDS, None, f"{PLURAL}.{GROUP}")
        except NotFound:
            return None
        return str((crd["metadata"].get("annotations") or {}).get(VERSION_ANNOTATION, ""))

    async def is_known() -> bool:
        try:
            await api.list(TRAINJOBS, namespace, limit=1)
        except ClusterError as error:
            return not lacks_api(error)
        return True

    release = await _answer(read())
    # Few people may read CRDs.
    return None if isinstance(release, Unknown) and not await _answer(is_known()) else release


_INSTALL = "ask an administrator to install the chart (docs/install.md)"


def check_crd(crd: Found[str | None], own: str) -> Check:
    """Whether the cluster knows TrainJobs, of this program's version."""
    if isinstance(crd, Unknown):
        return Check("CRD", NOTE, f"its version isn't known: {crd.why}")
    if crd is None:
        return Check("CRD", PROBLEM, f"this cluster has no {PLURAL}.{GROUP}", _INSTALL)
    return _check_release("CRD", crd, crd or "of an unknown version", own)


def check_controllers(deployments: Found[Sequence[Manifest]], own: str) -> Check:
    """Whether a controller runs, of this program's version."""
    if isinstance(deployments, Unknown):
        return Check("controller", NOTE, f"can't be seen: {deployments.why}")
    if not deployments:
        return Check("controller", PROBLEM, "this cluster has no Deployment of a controller", _INSTALL)
    releases = {
        f"{each['metadata']['namespace']}/{each['metadata']['name']}": str(
            (each["metadata"].get("labels") or {}).get("app.kubernetes.io/version", "")
        )
        for each in deployments
        if (each.get("status") or {}).get("readyReplicas")
    }
    if not releases:
        namespace, name = (deployments[0]["metadata"][key] for key in ("namespace", "name"))
        remedy = f"kubectl describe deployment {name} -n {namespace}, and the log of its pods"
        return Check("controller", PROBLEM, f"{namespace}/{name} has no ready pod", remedy)
    found = ", ".join(f"{each or 'of an unknown version'} in {where}" for where, each in releases.items())
    return _check_release("controller", next(iter(releases.values())), found, own)


def _check_release(subject: str, release: str, found: str, own: str) -> Check:
    theirs, ours = read_release(release), read_release(own)
    if theirs == UNKNOWN:
        return Check(subject, NOTE, found, f"this program is of version {own}")
    if theirs == ours:
        return Check(subject, OK, found)
    who = "an administrator should upgrade the chart" if theirs < ours else "upgrade this program"
    return Check(subject, NOTE, found, f"this program is of version {own}: {who}")


class Permission(NamedTuple):
    """Something that a person does in a cluster, as RBAC writes it, and the commands that use it.

    A resource is a plural, with the subresource behind a slash. Nothing works without what is `needed`.
    """

    verb: str
    group: str
    resource: str
    use: str
    needed: bool = False


PERMISSIONS = (
    Permission("create", GROUP, PLURAL, "submit", needed=True),
    Permission("get", GROUP, PLURAL, "get, wait", needed=True),
    Permission("list", GROUP, PLURAL, "get, list", needed=True),
    Permission("watch", GROUP, PLURAL, "wait, logs"),
    Permission("patch", GROUP, PLURAL, "suspend, resume, scale"),
    Permission("delete", GROUP, PLURAL, "delete"),
    Permission("create", "", "configmaps", "submit of scripts"),
    Permission("list", "", "pods", "logs, get NAME"),
    Permission("watch", "", "pods", "logs"),
    Permission("get", "", "pods/log", "logs"),
    Permission("create", "", "pods/exec", "cp"),
)


async def _find_permissions(api: ApiClient, namespace: str) -> Found[Mapping[Permission, bool]]:
    async def is_given(permission: Permission) -> bool:
        resource, _, subresource = permission.resource.partition("/")
        attributes = {
            "namespace": namespace,
            "verb": permission.verb,
            "group": permission.group,
            "resource": resource,
            "subresource": subresource,
        }
        question = {
            "apiVersion": _REVIEWS.api_version,
            "kind": _REVIEWS.kind,
            "metadata": {},
            "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
        }
        review = await api.create(_REVIEWS, question)
        return bool((review.get("status") or {}).get("allowed"))

    answers = await asyncio.gather(*(_answer(is_given(permission)) for permission in PERMISSIONS))
    unknown = next((answer for answer in answers if isinstance(answer, Unknown)), None)
    return unknown or dict(zip(PERMISSIONS, (answer is True for answer in answers), strict=True))


def check_permissions(allowed: Found[Mapping[Permission, bool]], namespace: str) -> Sequence[Check]:
    """Whether this person may do in the namespace what the commands do."""
    if isinstance(allowed, Unknown):
        return [Check("permissions", NOTE, f"unknown: {allowed.why}")]
    checks = []
    for needed in (True, False):
        missing = [each for each, is_given in allowed.items() if each.needed is needed and not is_given]
        if missing:
            rights = ", ".join(f"{each.verb} {each.resource}" for each in missing)
            uses = ", ".join(dict.fromkeys(use for each in missing for use in each.use.split(", ")))
            remedy = f"ask an administrator to bind the ClusterRole `edit` to you in {namespace}"
            found = f"you may not {rights} in {namespace} (for {uses})"
            verdict = PROBLEM if needed else NOTE
            checks.append(Check("permissions", verdict, found, remedy))
    return checks or [Check("permissions", OK, f"all of {len(allowed)} in {namespace}")]


_SHARED = {
    "efs.csi.aws.com": "Amazon EFS",
    "fsx.csi.aws.com": "Amazon FSx for Lustre",
    "file.csi.azure.com": "Azure Files",
    "kubernetes.io/azure-file": "Azure Files",
    "filestore.csi.storage.gke.io": "Google Filestore",
    "lustre.csi.storage.gke.io": "Google Managed Lustre",
    "nfs.csi.k8s.io": "NFS",
    "smb.csi.k8s.io": "SMB",
    "driver.longhorn.io": "Longhorn",
    "beegfs.csi.netapp.com": "BeeGFS",
    "csi.juicefs.com": "JuiceFS",
    "csi.weka.io": "WEKA",
    "spectrumscale.csi.ibm.com": "IBM Storage Scale",
    "cephfs.csi.ceph.com": "CephFS",
    "nfs.csi.ceph.com": "NFS of Ceph",
    "nfs-subdir-external-provisioner": "NFS",
}
"""Provisioners whose volumes several nodes may write to; some installations put a name of theirs in front."""


def check_storage(classes: Found[Sequence[Manifest]], claims: Sequence[str], namespace: str) -> Check:
    """Whether replicas on several nodes can share an output; `claims` are those of the namespace that can."""
    if claims:
        listed = ", ".join(claims[:3]) + (", …" if len(claims) > 3 else "")
        return Check("storage", OK, f"claims for several nodes in {namespace}: {listed}")
    if isinstance(classes, Unknown):
        return Check("storage", NOTE, f"the storage classes can't be listed: {classes.why}")
    provisioners = {each["metadata"]["name"]: each["provisioner"] for each in classes}
    shared = [
        f"{name} ({system})"
        for name, kind in provisioners.items()
        for known, system in _SHARED.items()
        if kind == known or kind.endswith((f".{known}", f"-{known}", f"/{known}"))
    ]
    if shared:
        return Check("storage", OK, f"classes for several nodes: {', '.join(shared)}")
    known = ", ".join(f"{name} ({kind})" for name, kind in provisioners.items()) or "no storage class"
    remedy = (
        "keep all replicas on one node, use --output nfs:SERVER:/FOLDER or a bucket (--output s3://BUCKET/FOLDER),"
        " or install a class for ReadWriteMany (NFS, CephFS, EFS, Filestore, Azure Files)"
    )
    return Check("storage", NOTE, f"no class is known to support several nodes: {known}", remedy)


# An image, pulled by a pod that is deleted again.


_NEVER = frozenset(["ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"])
_STARTING = frozenset(["ContainerCreating", "PodInitializing", "ErrImagePull"])

_SAY = """
import platform
found = ""
try:
    from importlib import metadata
    for name in ("tensorflow", "tensorflow-cpu", "tf-nightly", "tensorflow-rocm"):
        try:
            found = found or metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
except ImportError:
    pass
with open("/dev/termination-log", "w") as log:
    log.write(platform.python_version() + " " + found)
"""


async def try_image(access: Access, namespace: str, image: str, seconds: float) -> Check:
    """Have a pod pull an image, for so many seconds; the pod is deleted, also if this is cancelled."""
    pod = build_probe(namespace, image, f"trainjob-doctor-{secrets.token_hex(4)}", seconds)
    name = pod["metadata"]["name"]
    async with ApiClient(access, user_agent="trainjob", timeout=_REQUEST_SECONDS) as api:
        created = await _answer(api.create(PODS, pod))
        if isinstance(created, Unknown):
            return _not_tried(f"no pod can be created in {namespace}: {created.why}")
        last: Manifest = created
        try:
            async with asyncio.timeout(seconds):
                while True:
                    last = await api.get(PODS, namespace, name)
                    if (check := check_probe(last, image)) is not None:
                        return check
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            return _not_tried(
                f"{image} was not pulled within {seconds:g} s{_describe_wait(last)}; see --timeout"
            )
        except ClusterError as error:
            return _not_tried(printable(describe_problem(error)))
        finally:
            await _answer(api.delete(PODS, namespace, name, uid=created["metadata"]["uid"], grace_seconds=0))


def _not_tried(why: str) -> Check:
    return Check("image", PROBLEM, why, "see kubectl get events; the pod was deleted again")


def build_probe(namespace: str, image: str, name: str, seconds: float) -> Manifest:
    """Return the pod: it asks for little, and meets the restricted Pod Security standard."""
    container = {
        "name": TRAINER_CONTAINER,
        "image": image,
        "command": ["python", "-c", _SAY],
        "resources": {
            "requests": {"cpu": "10m", "memory": "64Mi"},
            "limits": {"cpu": "1", "memory": "256Mi"},
        },
        "securityContext": restricted_container(),
    }
    labels = {"app.kubernetes.io/name": "trainjob-doctor"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {
            "restartPolicy": "Never",
            # Ends it even if nobody is left to delete it.
            "activeDeadlineSeconds": int(seconds) + 60,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": restricted_pod(),
            "containers": [container],
        },
    }


def check_probe(pod: Manifest, image: str) -> Check | None:
    """Whether a node can pull the image, and its Python can train; None while this isn't known."""
    status = pod.get("status") or {}
    state = container_state(status)
    ended, waiting = state.get("terminated"), state.get("waiting") or {}
    reason = str(waiting.get("reason") or "")
    message = printable(str(waiting.get("message") or "")) or reason
    if ended is not None:
        message = str(ended.get("message") or f"{ended.get('reason')}, exit code {ended.get('exitCode')}")
        return _check_python(image, printable(message).strip())
    if reason in _NEVER:
        remedy = "correct the name, or give the namespace's service account an imagePullSecret"
        return Check("image", PROBLEM, f"{image} can't be pulled: {message}", remedy)
    if reason and reason not in _STARTING:
        return _check_python(image, message)
    if status.get("phase") == "Failed":
        return _not_tried(f"the pod with {image} failed: {status.get('message') or status.get('reason')}")
    return None


def _check_python(image: str, says: str) -> Check:
    """Whether the image's Python can train, by what it said, or why the pod didn't start."""
    python, _, tensorflow = says.partition(" ")
    if not is_within(python, ">=3.9"):
        why = f"has Python {python}" if python[:1].isdecimal() else f"its Python can't be run: {says}"
        remedy = "use an image with Python 3.9 or newer and TensorFlow"
        return Check("image", PROBLEM, f"{image} was pulled, but {why}", remedy)
    if not tensorflow:
        remedy = "use an image with TensorFlow, or install it there"
        return Check("image", PROBLEM, f"{image} has Python {python} and no TensorFlow", remedy)
    return Check("image", OK, f"{image} has Python {python}, TensorFlow {tensorflow}")


def _describe_wait(pod: Manifest) -> str:
    for each in (pod.get("status") or {}).get("conditions") or ():
        if (each.get("type"), each.get("status")) == ("PodScheduled", "False"):
            return f": the pod can't be scheduled ({printable(str(each.get('message')))})"
    is_placed = (pod.get("spec") or {}).get("nodeName")
    return ": a node is still pulling it" if is_placed else ": the pod isn't scheduled yet"


# The all-reduce: a job of two workers, deleted once it has been measured.


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
    script = ScriptJob(
        name=name, command=command, workers=2, evaluator=False, gpus=gpus, image=image, output=output
    )
    job = build_job(script)
    job["spec"]["maxRestarts"] = 0
    pod = job["spec"]["template"]["spec"]
    pod["containers"][0]["volumeMounts"] = [{"name": "shm", "mountPath": "/dev/shm"}]  # noqa: S108 - NCCL's
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
        "tolerations": [{"key": GPU, "operator": "Exists"}],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
    }
    return job


async def measure_all_reduce(
    access: Access, namespace: str, image: str, gpus: int, output: Mapping[str, Any], seconds: float
) -> Check:
    """Have two workers with so many GPUs each sum a tensor, for so many seconds.

    The job is deleted, also if this is cancelled; once it is measured, nothing is left in its output.
    """
    job = build_measurement(f"trainjob-doctor-{secrets.token_hex(4)}", image, gpus, output)
    name, last = job["metadata"]["name"], ""
    async with ApiClient(access, user_agent="trainjob", timeout=_REQUEST_SECONDS) as api:
        try:
            created, _ = await submit(api, namespace, job)
        except ClusterError as error:
            return check_all_reduce(Unknown(printable(describe_problem(error))))
        try:
            async with asyncio.timeout(seconds):
                while True:
                    status = (await api.get(TRAINJOBS, namespace, name)).get("status") or {}
                    last = printable(str(status.get("message") or ""))
                    if status.get("completionTime"):
                        return check_all_reduce(Unknown(last))
                    if (check := await _read_result(api, namespace, name, gpus)) is not None:
                        return check
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            why = f"nothing was measured in {seconds:g} s: {last or 'no controller has acted on the job'}"
            return check_all_reduce(Unknown(why))
        except ClusterError as error:
            return check_all_reduce(Unknown(printable(describe_problem(error))))
        finally:
            with suppress(ClusterError):
                await api.delete(TRAINJOBS, namespace, name, uid=created["metadata"]["uid"])


async def _read_result(api: ApiClient, namespace: str, job: str, gpus: int) -> Check | None:
    """Return the check of what worker 0 has printed, or None before that."""
    pods = [pod for pod in map(read_pod, await pods_of(api, namespace, job)) if pod is not None]
    first = next((pod for pod in pods if pod.replica.index == 0 and pod.state is PodState.RUNNING), None)
    if first is None:
        return None
    query = {"container": TRAINER_CONTAINER, "tailLines": "50", "limitBytes": str(_LOG_BYTES)}
    async with api.log(namespace, first.name, query) as pieces:
        text = b"".join([piece async for piece in pieces]).decode(errors="replace")
    line = re.search(re.escape(_MARK) + r"(\{.*\})", text)
    if line is None:
        return None
    nodes = sorted({pod.node for pod in pods if pod.node})
    with suppress(ValueError, TypeError, KeyError):  # the image's Python isn't the one that it says
        return check_all_reduce(json.loads(line[1]), nodes, gpus)
    return None


def check_all_reduce(measured: Found[Mapping[str, Any]], nodes: Sequence[str] = (), gpus: int = 0) -> Check:
    """Whether two workers, with so many GPUs each, can sum their gradients, and how fast."""
    subject = "all-reduce"
    if isinstance(measured, Unknown):
        remedy = (
            "correct what the message names, or try --gpus 0, which needs only the pods' network "
            "(docs/gpus.md)"
        )
        return Check(subject, PROBLEM, measured.why, remedy)
    implementation, devices = printable(str(measured["implementation"])), max(int(measured["devices"]), 1)
    size, seconds = int(measured["size"]), float(measured["seconds"])
    # As nccl-tests count it: what each device's link carries, whatever the number of devices.
    rate = 2 * (devices - 1) / devices * size / max(seconds, 1e-9)
    found = (
        f"{implementation} on {devices} devices, {' and '.join(nodes)}: "
        f"{size >> 20} MiB in {seconds * 1000:.1f} ms, {rate / 1e9:.2f} GB/s"
    )
    if gpus and implementation != "NCCL":
        remedy = "use an image with CUDA's libraries (docs/images.md); TensorFlow in this one sees no GPU"
        return Check(subject, PROBLEM, found, remedy)
    if len(nodes) < 2:
        return Check(
            subject, NOTE, found, "both workers ran on one node: the network between nodes was not measured"
        )
    return Check(subject, OK, found)
