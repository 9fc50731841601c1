"""What `trainjob doctor` says: one check for each thing that training needs, from what was found."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias, TypeVar

from trainjob.api.constants import GROUP, PLURAL
from trainjob.client.presenter import format_size
from trainjob.installation.crd_update import UNKNOWN, read_release


class Verdict(StrEnum):
    """The result of one check."""

    OK = "ok"
    NOTE = "note"
    """Training works without it, or it can't be told."""
    PROBLEM = "problem"


@dataclass(frozen=True)
class Check:
    """One line of the answer.

    Attributes:
        subject: what was looked at.
        verdict: the result.
        found: what is there.
        remedy: what to do; empty if there is nothing to do.
    """

    subject: str
    verdict: Verdict
    found: str
    remedy: str = ""


def is_healthy(checks: Iterable[Check]) -> bool:
    """Return whether all that is needed is there."""
    return all(check.verdict is not Verdict.PROBLEM for check in checks)


# What was found. Each look may end without a result.


@dataclass(frozen=True)
class Unknown:
    """A look without a result.

    Attributes:
        why: in one sentence.
    """

    why: str


Value = TypeVar("Value")
Found: TypeAlias = Value | Unknown


@dataclass(frozen=True, kw_only=True)
class TensorFlow:
    """What a process that imports TensorFlow and Keras says.

    Attributes:
        seconds: that the import takes.
        cuda: the version of CUDA that TensorFlow was built for; empty for processors alone.
        gpus: the names of the GPUs that TensorFlow sees.
    """

    version: str
    keras: str
    seconds: float
    cuda: str = ""
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Here:
    """What was found on this machine.

    Attributes:
        python: the version.
        python_range: the versions that `trainjob` is made for, such as `<3.14,>=3.11`.
        program: the interpreter's path.
        trainer: the version of trainjob-trainer, or None if it isn't installed.
        own: the version of trainjob.
        requirements: of trainjob-trainer, as its metadata has them.
        tensorflow: None if it isn't installed.
        devices: the NVIDIA devices that the caller may use.
        driver: the version of NVIDIA's driver; empty without one.
        is_choosing: CUDA_VISIBLE_DEVICES is set.
        ports: how many free ports were found.
        folder: where runs would lie.
        free: bytes that are free there, for this user.
    """

    python: str
    python_range: str
    program: str
    trainer: str | None
    own: str
    requirements: tuple[str, ...] = ()
    tensorflow: Found[TensorFlow] | None = None
    devices: tuple[str, ...] = ()
    driver: Found[str] = ""
    is_choosing: bool = False
    ports: Found[int] = 0
    folder: str = "runs"
    free: Found[int] = 0


@dataclass(frozen=True)
class Permission:
    """Something that a person does in a cluster.

    Attributes:
        verb: as RBAC writes it.
        group: the API group; empty for the core group.
        resource: the plural, with the subresource behind a slash.
        use: the commands that need it.
        needed: nothing works without it.
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


@dataclass(frozen=True, kw_only=True)
class Controller:
    """A Deployment of the controller.

    Attributes:
        where: its namespace and name.
        version: of its label; empty without one.
        ready: how many of its pods are ready.
    """

    where: str
    version: str
    ready: int


@dataclass(frozen=True, kw_only=True)
class Image:
    """What became of the pod with an image.

    Attributes:
        pulled: a node has pulled the image.
        says: what the image's Python said, or why the pod didn't start.
    """

    name: str
    pulled: bool
    says: str = ""


@dataclass(frozen=True, kw_only=True)
class AllReduce:
    """A sum over all devices of two workers, measured.

    Attributes:
        implementation: `NCCL` or `RING`.
        devices: how many there are in all.
        size: of the tensor, in bytes.
        seconds: of one all-reduce, the median of ten.
        nodes: where the workers ran.
        asked: GPUs that each worker asked for.
    """

    implementation: str
    devices: int
    size: int
    seconds: float
    nodes: tuple[str, ...]
    asked: int = 0


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What was found in a cluster.

    Attributes:
        server: its address; Unknown without a usable kubeconfig.
        asked: options name this cluster, so that it has to be there.
        namespace: that of the options or of the context.
        version: of Kubernetes.
        crd: the release of the CRD, empty if it has none; None if there is no CRD.
        controllers: those that can be seen.
        allowed: whether each permission is given in the namespace.
        classes: the provisioner of each storage class.
        shared_claims: names of claims of the namespace that several nodes may write to.
        image: None if no image was named.
        all_reduce: None if none was asked for, or nothing can run it.
    """

    server: Found[str]
    asked: bool = False
    namespace: str = "default"
    version: Found[str] = ""
    crd: Found[str | None] = None
    controllers: Found[tuple[Controller, ...]] = ()
    allowed: Found[Mapping[Permission, bool]] = field(default_factory=dict)
    classes: Found[Mapping[str, str]] = field(default_factory=dict)
    shared_claims: Found[tuple[str, ...]] = ()
    image: Found[Image] | None = None
    all_reduce: Found[AllReduce] | None = None


# Checks of this machine.


def check_here(here: Here, *, needed: bool) -> tuple[Check, ...]:
    """Return the checks of this machine; `needed`: training here is what is asked about."""
    checks = (
        check_python(here),
        check_trainer(here),
        check_tensorflow(here),
        check_keras(here),
        check_gpus(here),
        check_ports(here.ports),
        check_disk(here.folder, here.free),
    )
    return tuple(check for check in checks if check is not None) if needed else tuple(_as_notes(checks))


def _as_notes(checks: Iterable[Check | None]) -> Iterator[Check]:
    for check in checks:
        if check is not None:
            is_problem = check.verdict is Verdict.PROBLEM
            yield Check(
                check.subject, Verdict.NOTE if is_problem else check.verdict, check.found, check.remedy
            )


def check_python(here: Here) -> Check:
    """Whether this Python is one that trainjob is made for."""
    found = f"{here.python} ({here.program})"
    if _is_within(here.python, here.python_range):
        return Check("Python", Verdict.OK, found)
    remedy = f"install trainjob with a Python {_in_words(here.python_range)}"
    return Check("Python", Verdict.PROBLEM, found, remedy)


_INSTALL = "pip install 'trainjob-trainer[cpu]', or [gpu] for NVIDIA GPUs"


def check_trainer(here: Here) -> Check:
    """Whether operator and trainer are there, of one version."""
    if here.trainer is None:
        return Check("trainjob", Verdict.PROBLEM, f"{here.own}, without trainjob-trainer", _INSTALL)
    if here.trainer != here.own:
        found = f"{here.own}, with trainjob-trainer {here.trainer}"
        return Check("trainjob", Verdict.NOTE, found, "install both of one version")
    return Check("trainjob", Verdict.OK, here.own)


def check_tensorflow(here: Here) -> Check:
    """Whether TensorFlow can be imported, and is of a version that is tested."""
    match here.tensorflow:
        case None:
            return Check("TensorFlow", Verdict.PROBLEM, "not installed in this Python", _INSTALL)
        case Unknown(why):
            remedy = f"repair the installation, or begin with a new environment: {_INSTALL}"
            return Check("TensorFlow", Verdict.PROBLEM, f"can't be imported: {why}", remedy)
        case TensorFlow() as tensorflow:
            found = f"{tensorflow.version}, imported in {tensorflow.seconds:.1f} s"
            return _check_tested(
                "TensorFlow", tensorflow.version, here, ("tensorflow", "tensorflow-cpu"), found
            )


def check_keras(here: Here) -> Check | None:
    """Whether Keras is of a version that is tested; None without TensorFlow."""
    if not isinstance(here.tensorflow, TensorFlow):
        return None
    version = here.tensorflow.keras
    if version.startswith("2."):
        remedy = f"unset TF_USE_LEGACY_KERAS and install Keras 3: {_INSTALL}"
        return Check("Keras", Verdict.PROBLEM, f"{version}, which trains only in loops of your own", remedy)
    return _check_tested("Keras", version, here, ("keras",), version)


def _check_tested(subject: str, version: str, here: Here, names: Collection[str], found: str) -> Check:
    ranges = [text for text in here.requirements if re.split(r"[^\w-]", text, maxsplit=1)[0] in names]
    if not ranges or _is_within(version, ranges[0]):
        return Check(subject, Verdict.OK, found)
    tested = _in_words(ranges[0])
    return Check(
        subject, Verdict.NOTE, f"{found}; tested are versions {tested}", f"if training fails, {_INSTALL}"
    )


def check_gpus(here: Here) -> Check | None:
    """Whether TensorFlow sees the GPUs of this machine; None if neither is known."""
    devices = len(here.devices)
    counted = f"{devices} NVIDIA GPU{'' if devices == 1 else 's'}"
    driver = f", driver {here.driver}" if isinstance(here.driver, str) and here.driver else ""
    if not isinstance(here.tensorflow, TensorFlow):
        return Check("GPUs", Verdict.OK, f"{counted}{driver}") if devices else None
    gpus, cuda = here.tensorflow.gpus, here.tensorflow.cuda
    built = f"TensorFlow for CUDA {cuda}" if cuda else "TensorFlow without CUDA"
    if gpus:
        return Check("GPUs", Verdict.OK, f"{', '.join(gpus)} ({built}{driver})")
    if not devices:
        hidden = "none (CUDA_VISIBLE_DEVICES hides them)" if here.is_choosing else "none"
        return Check("GPUs", Verdict.OK, f"{hidden}; training uses the processors ({built})")
    if not cuda:
        remedy = "pip install 'trainjob-trainer[gpu]' in an environment without tensorflow-cpu"
        return Check("GPUs", Verdict.PROBLEM, f"{counted}{driver}, and {built}", remedy)
    found = f"{counted}{driver}, and {built} sees none"
    if isinstance(here.driver, Unknown):
        remedy = "install or restart NVIDIA's driver: nvidia-smi must list the GPUs"
        return Check("GPUs", Verdict.PROBLEM, f"{found}; {here.driver.why}", remedy)
    remedy = "install CUDA's libraries: pip install 'tensorflow[and-cuda]'; its import names those missing"
    return Check("GPUs", Verdict.PROBLEM, found, remedy)


PORTS = 12
"""Two for each of six replicas."""


def check_ports(ports: Found[int]) -> Check:
    """Whether replicas can listen on this machine."""
    if isinstance(ports, Unknown):
        remedy = "let programs listen on 127.0.0.1, or end some of those that do (ss -ltn)"
        return Check("ports", Verdict.PROBLEM, ports.why, remedy)
    return Check("ports", Verdict.OK, f"{ports} free ones found between 15000 and 32000")


_LITTLE, _SCARCE = 10**9, 10**10


def check_disk(folder: str, free: Found[int]) -> Check:
    """Whether there is room for checkpoints, models and logs."""
    if isinstance(free, Unknown):
        remedy = "make it writable, or choose another one: trainjob run --folder"
        return Check("disk", Verdict.PROBLEM, f"{folder} can't be written: {free.why}", remedy)
    found = f"{format_size(free)} free for {folder}"
    if free >= _SCARCE:
        return Check("disk", Verdict.OK, found)
    verdict = Verdict.PROBLEM if free < _LITTLE else Verdict.NOTE
    remedy = "free some space, or choose another disk: trainjob run --folder"
    return Check("disk", verdict, found, remedy)


# Checks of a cluster.


def check_cluster(cluster: Cluster, own: str) -> tuple[Check, ...]:
    """Return the checks of a cluster; `own` is the version of this program."""
    access = check_access(cluster)
    if isinstance(cluster.server, Unknown) or access.verdict is Verdict.PROBLEM:
        return (access,)
    checks = (
        access,
        check_crd(cluster.crd, own),
        check_controllers(cluster.controllers, own),
        *check_permissions(cluster.allowed, cluster.namespace),
        check_storage(cluster.classes, cluster.shared_claims, cluster.namespace),
        check_image(cluster.image) if cluster.image is not None else None,
        check_all_reduce(cluster.all_reduce) if cluster.all_reduce is not None else None,
    )
    return tuple(check for check in checks if check is not None)


_OLDEST_KUBERNETES = (1, 29)


def check_access(cluster: Cluster) -> Check:
    """Whether there is a kubeconfig, and its API server answers, and is new enough."""
    if isinstance(cluster.server, Unknown):
        remedy = "only for training in a cluster: get a kubeconfig, and name it by KUBECONFIG or --kubeconfig"
        verdict = Verdict.PROBLEM if cluster.asked else Verdict.NOTE
        return Check("kubeconfig", verdict, cluster.server.why, remedy)
    if isinstance(cluster.version, Unknown):
        remedy = "start or reach the cluster (VPN, proxy, login), or choose another one by --context"
        return Check("cluster", Verdict.PROBLEM, f"{cluster.server}: {cluster.version.why}", remedy)
    found = f"Kubernetes {cluster.version} at {cluster.server}, namespace {cluster.namespace}"
    numbers = cluster.version.lstrip("v").split(".")[:2]
    if all(number.isdecimal() for number in numbers) and tuple(map(int, numbers)) < _OLDEST_KUBERNETES:
        return Check("cluster", Verdict.PROBLEM, found, "TrainJob needs Kubernetes 1.29 or newer: upgrade it")
    return Check("cluster", Verdict.OK, found)


def check_crd(crd: Found[str | None], own: str) -> Check:
    """Whether the cluster knows TrainJobs, of this program's version."""
    if isinstance(crd, Unknown):
        return Check("CRD", Verdict.NOTE, f"its version isn't known: {crd.why}")
    if crd is None:
        remedy = "have an administrator install the chart (docs/install.md)"
        return Check("CRD", Verdict.PROBLEM, f"this cluster has no {PLURAL}.{GROUP}", remedy)
    return _check_release("CRD", crd, crd or "of an unknown version", own)


def check_controllers(controllers: Found[tuple[Controller, ...]], own: str) -> Check:
    """Whether a controller runs, of this program's version."""
    if isinstance(controllers, Unknown):
        return Check("controller", Verdict.NOTE, f"can't be seen: {controllers.why}")
    if not controllers:
        remedy = "have an administrator install the chart (docs/install.md)"
        return Check("controller", Verdict.PROBLEM, "no Deployment of one is in this cluster", remedy)
    ready = [controller for controller in controllers if controller.ready]
    if not ready:
        where = controllers[0].where
        namespace, _, name = where.partition("/")
        remedy = f"kubectl describe deployment {name} -n {namespace}, and the log of its pods"
        return Check("controller", Verdict.PROBLEM, f"{where} has no pod that is ready", remedy)
    found = ", ".join(f"{each.version or 'of an unknown version'} in {each.where}" for each in ready)
    return _check_release("controller", ready[0].version, found, own)


def _check_release(subject: str, version: str, found: str, own: str) -> Check:
    theirs, ours = read_release(version), read_release(own)
    if theirs == UNKNOWN:
        return Check(subject, Verdict.NOTE, found, f"this program is of version {own}")
    if theirs == ours:
        return Check(subject, Verdict.OK, found)
    who = "an administrator should upgrade the chart" if theirs < ours else "upgrade this program"
    return Check(subject, Verdict.NOTE, found, f"this program is of version {own}: {who}")


def check_permissions(allowed: Found[Mapping[Permission, bool]], namespace: str) -> tuple[Check, ...]:
    """Whether this person may do in the namespace what the commands do."""
    if isinstance(allowed, Unknown):
        return (Check("permissions", Verdict.NOTE, f"can't be told: {allowed.why}"),)
    checks = []
    for needed in (True, False):
        missing = [each for each, is_given in allowed.items() if each.needed is needed and not is_given]
        if missing:
            rights = ", ".join(f"{each.verb} {each.resource}" for each in missing)
            uses = ", ".join(dict.fromkeys(use for each in missing for use in each.use.split(", ")))
            remedy = f"have an administrator bind the ClusterRole `edit` to you in {namespace}"
            found = f"you may not {rights} in {namespace} (for {uses})"
            verdict = Verdict.PROBLEM if needed else Verdict.NOTE
            checks.append(Check("permissions", verdict, found, remedy))
    return tuple(checks) or (Check("permissions", Verdict.OK, f"all of {len(allowed)} in {namespace}"),)


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


def shares_volumes(provisioner: str) -> str:
    """Return the name of the file system if its volumes can be written by several nodes, or an empty text."""
    ends = (
        name
        for known, name in _SHARED.items()
        if provisioner.endswith((f".{known}", f"-{known}", f"/{known}"))
    )
    return _SHARED.get(provisioner) or next(ends, "")


def check_storage(classes: Found[Mapping[str, str]], claims: Found[tuple[str, ...]], namespace: str) -> Check:
    """Whether replicas on several nodes can share an output."""
    if isinstance(claims, tuple) and claims:
        listed = ", ".join(claims[:3]) + (", …" if len(claims) > 3 else "")
        return Check("storage", Verdict.OK, f"claims for several nodes in {namespace}: {listed}")
    if isinstance(classes, Unknown):
        return Check("storage", Verdict.NOTE, f"the storage classes can't be listed: {classes.why}")
    shared = [f"{name} ({system})" for name, kind in classes.items() if (system := shares_volumes(kind))]
    if shared:
        return Check("storage", Verdict.OK, f"classes for several nodes: {', '.join(shared)}")
    known = ", ".join(f"{name} ({kind})" for name, kind in classes.items()) or "no storage class"
    remedy = (
        "keep all replicas on one node, use --output nfs:SERVER:/FOLDER, or install a class for ReadWriteMany"
        " (NFS, CephFS, EFS, Filestore, Azure Files)"
    )
    return Check("storage", Verdict.NOTE, f"none is known to serve several nodes: {known}", remedy)


def check_image(image: Found[Image]) -> Check:
    """Whether a node can pull the image, and its Python can train."""
    if isinstance(image, Unknown):
        remedy = "see kubectl get events; the pod was deleted again"
        return Check("image", Verdict.PROBLEM, image.why, remedy)
    if not image.pulled:
        remedy = "correct the name, or give the namespace's service account an imagePullSecret"
        return Check("image", Verdict.PROBLEM, f"{image.name} can't be pulled: {image.says}", remedy)
    python, _, tensorflow = image.says.partition(" ")
    if not _is_within(python, ">=3.9"):
        remedy = "take an image with Python 3.9 or newer and TensorFlow"
        why = (
            f"its Python can't be run: {image.says}" if not python[:1].isdecimal() else f"has Python {python}"
        )
        return Check("image", Verdict.PROBLEM, f"{image.name} is pulled, and {why}", remedy)
    if not tensorflow:
        remedy = "take an image with TensorFlow, or install it there"
        return Check("image", Verdict.PROBLEM, f"{image.name} has Python {python} and no TensorFlow", remedy)
    return Check("image", Verdict.OK, f"{image.name} has Python {python}, TensorFlow {tensorflow}")


def check_all_reduce(measured: Found[AllReduce]) -> Check:
    """Whether two workers can sum their gradients, and how fast."""
    subject = "all-reduce"
    if isinstance(measured, Unknown):
        remedy = "correct what it says, or try --gpus 0, which needs the pods' network alone (docs/gpus.md)"
        return Check(subject, Verdict.PROBLEM, measured.why, remedy)
    # As nccl-tests count it: what each device's link carries, whatever the number of devices.
    rate = 2 * (measured.devices - 1) / measured.devices * measured.size / max(measured.seconds, 1e-9)
    found = (
        f"{measured.implementation} on {measured.devices} devices, {' and '.join(measured.nodes)}: "
        f"{measured.size >> 20} MiB in {measured.seconds * 1000:.1f} ms, {rate / 1e9:.2f} GB/s"
    )
    if measured.asked and measured.implementation != "NCCL":
        remedy = "take an image with CUDA's libraries (docs/images.md); TensorFlow in this one sees no GPU"
        return Check(subject, Verdict.PROBLEM, found, remedy)
    if len(measured.nodes) < 2:
        return Check(
            subject, Verdict.NOTE, found, "one node took both workers: no network between nodes was used"
        )
    return Check(subject, Verdict.OK, found)


# Versions.


_BOUND = re.compile(r"(>=|<)\s*([0-9.]+)")


def _is_within(version: str, bounds: str) -> bool:
    """Return whether a version is within bounds such as `<3.14,>=3.11`; a candidate counts as its release."""
    numbers = _numbers(version)
    known = _BOUND.findall(bounds.partition(";")[0])
    return bool(numbers) and all((numbers >= _numbers(b)) is (kind == ">=") for kind, b in known)


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, found[0].split("."))) if found else ()


def _in_words(bounds: str) -> str:
    """Return `from 3.11 to below 3.14`."""
    known = dict(_BOUND.findall(bounds.partition(";")[0]))
    return f"from {known.get('>=')} to below {known.get('<')}"
