"""The looks of `trainjob doctor`: at this machine, and at a cluster. Each ends in bounded time."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import platform
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trainjob.api.constants import GROUP, PLURAL, TRAINER_CONTAINER
from trainjob.client.connection import ClusterOptions, find_access
from trainjob.client.doctor import (
    PERMISSIONS,
    PORTS,
    Cluster,
    Controller,
    Found,
    Here,
    Image,
    Permission,
    TensorFlow,
    Unknown,
    Verdict,
    check_image,
)
from trainjob.client.doctor_all_reduce import measure_all_reduce
from trainjob.client.problems import describe_problem, lacks_api
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.config import Access, InvalidAccess
from trainjob.cluster.kube.resources import CLAIMS, PODS, SERVER_VERSION, TRAINJOBS, Resource
from trainjob.cluster.local.machine import PortBook, find_gpus
from trainjob.cluster.protocol import ClusterError, NotFound, allow_deep_objects
from trainjob.core.pods import container_state
from trainjob.core.script import restricted_container, restricted_pod
from trainjob.core.wording import printable
from trainjob.installation.crd_update import CRDS, VERSION_ANNOTATION

if TYPE_CHECKING:
    from trainjob.cluster.protocol import Manifest

Value = TypeVar("Value")

# Bounded time: a folder of a network that is away, a credential plugin or a driver may never answer.


_LOOK_SECONDS = 15.0


def bounded(look: Callable[[], Found[Value]], seconds: float = _LOOK_SECONDS) -> Found[Value]:
    """Return what a look finds; Unknown after so many seconds, and for an OSError or an InvalidAccess.

    A look that doesn't end is left behind: its thread doesn't keep the process.
    """
    found: list[Found[Value]] = [Unknown(f"no answer within {seconds:g} s")]

    def run() -> None:
        try:
            found.insert(0, look())
        except OSError as error:
            found.insert(0, Unknown(error.strerror or str(error)))
        except InvalidAccess as error:
            found.insert(0, Unknown(str(error)))

    thread = threading.Thread(target=run, name="trainjob-doctor", daemon=True)
    thread.start()
    thread.join(seconds)
    return found[0]


def run_program(command: Sequence[str], seconds: float) -> Found[str]:
    """Return what a program prints; Unknown if it fails, with its last line, or if it takes longer."""
    # Files: a pipe would be held open by what the program leaves behind.
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=printed, stderr=errors, start_new_session=True
            )
        except OSError as error:
            return Unknown(f"{command[0]}: {error.strerror}")
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return Unknown(f"no answer within {seconds:g} s")
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)  # a program that waits for a driver can't be killed
        for file in (printed, errors):
            file.seek(0)
        lines = printable((errors if code else printed).read().decode(errors="replace")).strip()
        return Unknown(lines.splitlines()[-1] if lines else f"exit code {code}") if code else lines


# This machine.


_IMPORT_SECONDS = 90.0
_ASK = """
import json, time
begin = time.perf_counter()
import tensorflow as tf
import keras
seconds = time.perf_counter() - begin
built = tf.sysconfig.get_build_info()
gpus = tf.config.list_physical_devices("GPU")
names = [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus]
cuda = built.get("cuda_version", "") if built.get("is_cuda_build") else ""
print(json.dumps({"version": tf.__version__, "keras": keras.__version__, "seconds": seconds,
                  "cuda": cuda, "gpus": names}))
"""


def look_here(folder: Path, environ: Mapping[str, str] = os.environ) -> Here:
    """Look at this machine.

    Args:
        folder: where runs would lie; it isn't created.
        environ: the caller's environment.
    """
    devices = bounded(lambda: find_gpus(environ))
    return Here(
        python=platform.python_version(),
        python_range=str(metadata("trainjob")["Requires-Python"]),
        program=sys.executable,
        trainer=_version_of("trainjob-trainer"),
        own=version("trainjob"),
        requirements=_requirements(),
        tensorflow=look_for_tensorflow([sys.executable, "-P"]),
        devices=devices if isinstance(devices, tuple) else (),
        driver=_find_driver() if devices else "",
        is_choosing="CUDA_VISIBLE_DEVICES" in environ,
        ports=bounded(_find_ports),
        folder=str(folder),
        free=bounded(lambda: _find_room(folder)),
    )


def look_for_tensorflow(python: Sequence[str], seconds: float = _IMPORT_SECONDS) -> Found[TensorFlow] | None:
    """Have another process import TensorFlow; None if there is none."""
    if importlib.util.find_spec("tensorflow") is None:
        return None
    said = run_program([*python, "-c", _ASK], seconds)
    if isinstance(said, Unknown):
        return said
    try:
        known = json.loads(said.splitlines()[-1])
        return TensorFlow(**{**known, "gpus": tuple(known["gpus"])})
    except (ValueError, IndexError, TypeError, KeyError):
        return Unknown(f"it says {said[-100:]!r}")


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _requirements() -> tuple[str, ...]:
    try:
        return tuple(requires("trainjob-trainer") or ())
    except PackageNotFoundError:
        return ()


def _find_driver() -> Found[str]:
    said = run_program(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], _LOOK_SECONDS)
    return said if isinstance(said, Unknown) else said.partition("\n")[0]


def _find_ports() -> Found[int]:
    book = PortBook()
    book.give(f"replica-{number}" for number in range(PORTS // 2))
    return 2 * len(book.ports)


def _find_room(folder: Path) -> Found[int]:
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
    with tempfile.NamedTemporaryFile(dir=there, prefix=".trainjob-"):
        return shutil.disk_usage(there).free


# A cluster.


_REQUEST_SECONDS = 10.0
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
CLASSES = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass")
REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview")
_CONTROLLERS = "app.kubernetes.io/name=trainjob,app.kubernetes.io/component=controller"


def look_at_cluster(
    where: ClusterOptions,
    image: str | None,
    seconds: float,
    *,
    gpus: int | None = None,
    output: Mapping[str, Any] | None = None,
) -> Cluster:
    """Look at the cluster that the options select.

    Args:
        where: the options.
        image: to be pulled by a pod, if any.
        seconds: for that, and then for the all-reduce.
        gpus: of each worker of an all-reduce in that image; None for none.
        output: `spec.output` of its job; None for the first claim that several nodes may write to.
    """
    allow_deep_objects()
    asked = where != ClusterOptions() or image is not None
    access = bounded(lambda: _find_access(where))
    if isinstance(access, Unknown):
        return Cluster(server=access, asked=asked)
    namespace = where.namespace or access.namespace
    known = bounded(lambda: asyncio.run(_ask_cluster(access, namespace)), 4 * _LOOK_SECONDS)
    if isinstance(known, Unknown):
        return Cluster(server=access.server, asked=asked, namespace=namespace, version=known)
    found = replace(known, asked=asked)
    if image is None or isinstance(found.version, Unknown):
        return found
    # In this thread: Ctrl-C has to delete the pod.
    tried = asyncio.run(try_image(access, namespace, image, seconds))
    found = replace(found, image=tried)
    if gpus is None or check_image(tried).verdict is not Verdict.OK:
        return found
    if output is None and isinstance(found.shared_claims, tuple) and found.shared_claims:
        output = {"claim": {"claimName": found.shared_claims[0]}}
    if output is None:
        why = f"no claim in {namespace} is for several nodes: name an output by --job-output"
        return replace(found, all_reduce=Unknown(why))
    measured = measure_all_reduce(access, namespace, image, gpus, output, seconds)
    return replace(found, all_reduce=asyncio.run(measured))


def _find_access(where: ClusterOptions) -> Access:
    access = find_access(where)
    if access.read_token is None:
        return access
    # Once, here: a credential plugin may wait for somebody to log in.
    token = access.read_token(False)
    return replace(access, read_token=lambda _refused: token)


async def _ask_cluster(access: Access, namespace: str) -> Cluster:
    async with ApiClient(access, user_agent="trainjob", timeout=_REQUEST_SECONDS) as api:
        answer = await _asked(api.get(SERVER_VERSION, None, ""))
        release = answer if isinstance(answer, Unknown) else str(answer.get("gitVersion", ""))
        found = Cluster(server=access.server, namespace=namespace, version=release)
        if isinstance(release, Unknown):
            return found
        crd, controllers, allowed, classes, claims = await asyncio.gather(
            _find_crd(api, namespace),
            _asked(api.list(DEPLOYMENTS, None, selector=_CONTROLLERS)),
            _find_permissions(api, namespace),
            _asked(api.list(CLASSES, None)),
            _asked(api.list(CLAIMS, namespace)),
        )
    return replace(
        found,
        crd=crd,
        controllers=_each(controllers, _read_controller),
        allowed=allowed,
        classes=_as_mapping(_each(classes, lambda item: (item["metadata"]["name"], item["provisioner"]))),
        shared_claims=_shared(claims),
    )


async def _asked(request: Awaitable[Value]) -> Found[Value]:
    try:
        async with asyncio.timeout(_REQUEST_SECONDS + 1):
            return await request
    except ClusterError as error:
        return Unknown(printable(describe_problem(error)))
    except TimeoutError:
        return Unknown(f"no answer within {_REQUEST_SECONDS:g} s")


async def _find_crd(api: ApiClient, namespace: str) -> Found[str | None]:
    async def read() -> Manifest | None:
        try:
            return await api.get(CRDS, None, f"{PLURAL}.{GROUP}")
        except NotFound:
            return None

    async def is_known() -> bool:
        try:
            await api.list(TRAINJOBS, namespace, limit=1)
        except ClusterError as error:
            return not lacks_api(error)
        return True

    answer = await _asked(read())
    if isinstance(answer, Unknown):  # few people may read CRDs
        return answer if await _asked(is_known()) else None
    if answer is None:
        return None
    return str((answer["metadata"].get("annotations") or {}).get(VERSION_ANNOTATION, ""))


def _each(answer: Found[Manifest], read: Callable[[Manifest], Value]) -> Found[tuple[Value, ...]]:
    return answer if isinstance(answer, Unknown) else tuple(map(read, answer.get("items") or ()))


def _as_mapping(pairs: Found[tuple[tuple[str, str], ...]]) -> Found[Mapping[str, str]]:
    return pairs if isinstance(pairs, Unknown) else dict(pairs)


def _read_controller(deployment: Manifest) -> Controller:
    meta = deployment["metadata"]
    return Controller(
        where=f"{meta['namespace']}/{meta['name']}",
        version=str((meta.get("labels") or {}).get("app.kubernetes.io/version", "")),
        ready=int((deployment.get("status") or {}).get("readyReplicas") or 0),
    )


def _shared(answer: Found[Manifest]) -> Found[tuple[str, ...]]:
    if isinstance(answer, Unknown):
        return answer
    items = answer.get("items") or ()
    return tuple(
        item["metadata"]["name"]
        for item in items
        if "ReadWriteMany" in (item["spec"].get("accessModes") or ())
        and (item.get("status") or {}).get("phase") == "Bound"
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
        review = await api.create(REVIEWS, build_review(attributes))
        return bool((review.get("status") or {}).get("allowed"))

    answers = await asyncio.gather(*(_asked(is_given(permission)) for permission in PERMISSIONS))
    unknown = next((answer for answer in answers if isinstance(answer, Unknown)), None)
    if unknown is not None:
        return unknown
    return {permission: answer is True for permission, answer in zip(PERMISSIONS, answers, strict=True)}


def build_review(attributes: Mapping[str, str]) -> Manifest:
    """Return the question whether the caller may do something."""
    return {
        "apiVersion": REVIEWS.api_version,
        "kind": REVIEWS.kind,
        "metadata": {},
        "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
    }


# An image, pulled by a pod that is deleted again.


_POLL_SECONDS = 1.0
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


async def try_image(access: Access, namespace: str, image: str, seconds: float) -> Found[Image]:
    """Have a pod pull an image, for so many seconds; the pod is deleted, also if this is cancelled."""
    pod = build_probe(namespace, image, f"trainjob-doctor-{secrets.token_hex(4)}", seconds)
    name = pod["metadata"]["name"]
    async with ApiClient(access, user_agent="trainjob", timeout=_REQUEST_SECONDS) as api:
        created = await _asked(api.create(PODS, pod))
        if isinstance(created, Unknown):
            return Unknown(f"no pod can be created in {namespace}: {created.why}")
        last: Manifest = created
        try:
            async with asyncio.timeout(seconds):
                while True:
                    last = await api.get(PODS, namespace, name)
                    if (found := read_probe(last, image)) is not None:
                        return found
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError:
            return Unknown(f"{image} isn't pulled after {seconds:g} s{_describe_wait(last)}; see --timeout")
        except ClusterError as error:
            return Unknown(printable(describe_problem(error)))
        finally:
            await _asked(api.delete(PODS, namespace, name, uid=created["metadata"]["uid"], grace_seconds=0))


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
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {"app.kubernetes.io/name": "trainjob-doctor"},
        },
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


def read_probe(pod: Manifest, image: str) -> Found[Image] | None:
    """Return what became of the image; None while this isn't known."""
    status = pod.get("status") or {}
    state = container_state(status)
    ended, waiting = state.get("terminated"), state.get("waiting") or {}
    if ended is not None:
        says = str(ended.get("message") or f"{ended.get('reason')}, exit code {ended.get('exitCode')}")
        return Image(name=image, pulled=True, says=printable(says).strip())
    reason, message = str(waiting.get("reason") or ""), printable(str(waiting.get("message") or ""))
    if reason in _NEVER:
        return Image(name=image, pulled=False, says=message or reason)
    if reason and reason not in _STARTING:
        return Image(name=image, pulled=True, says=message or reason)
    if status.get("phase") == "Failed":
        return Unknown(f"the pod with {image} failed: {status.get('message') or status.get('reason')}")
    return None


def _describe_wait(pod: Manifest) -> str:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    for each in conditions:
        if (each.get("type"), each.get("status")) == ("PodScheduled", "False"):
            return f": no node takes the pod ({printable(str(each.get('message')))})"
    is_placed = (pod.get("spec") or {}).get("nodeName")
    return ": a node is still pulling it" if is_placed else ": no node has taken the pod"
