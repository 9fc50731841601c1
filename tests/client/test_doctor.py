"""What `trainjob doctor` says about what it has found, and that its looks end."""

from __future__ import annotations

import platform
import sys
import threading
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from trainjob.cli.doctor import describe
from trainjob.client import doctor
from trainjob.client.doctor import (
    BucketTrial,
    Check,
    TensorFlow,
    Unknown,
    Verdict,
    bounded,
    check_bucket,
    check_disk,
    check_gpus,
    check_here,
    check_keras,
    check_ports,
    check_python,
    check_tensorflow,
    check_trainer,
    look_for_tensorflow,
    name_store,
    run_program,
    try_bucket,
)
from trainjob.client.doctor_cluster import (
    PERMISSIONS,
    build_probe,
    check_controllers,
    check_crd,
    check_permissions,
    check_probe,
    check_server,
    check_storage,
)

OK, NOTE, PROBLEM = Verdict.OK, Verdict.NOTE, Verdict.PROBLEM
AWAY = Unknown("no answer within 15 s")
OWN = "0.1.0"
PYTHON = "<3.14,>=3.11"
TENSORFLOW = TensorFlow("2.21.0", "3.15.1", 4.21)
CUDA = TENSORFLOW._replace(cuda="12.5.1")
REQUIREMENTS = (
    "keras<3.16,>=3.10; extra == 'cpu'",
    "tensorflow-cpu<2.22,>=2.20; (sys_platform == 'linux') and extra == 'cpu'",
    "tensorflow[and-cuda]<2.22,>=2.20; extra == 'gpu'",
)


def tensorflow(version: str) -> Check:
    return check_tensorflow(TENSORFLOW._replace(version=version), REQUIREMENTS)


def keras(version: str) -> Check | None:
    return check_keras(TENSORFLOW._replace(keras=version), REQUIREMENTS)


def gpus(found: TensorFlow, devices: int, driver: str | Unknown = "550.54") -> Check | None:
    return check_gpus(found, devices, driver, is_choosing=not devices)


@pytest.mark.parametrize(
    ("check", "verdict", "says", "remedy"),
    [
        (check_python("3.11.7", PYTHON), OK, f"3.11.7 ({sys.executable})", ""),
        (check_python("3.14.0", PYTHON), PROBLEM, "3.14.0 (/", "with a Python from 3.11 to below 3.14"),
        (check_python("3.10.9", PYTHON), PROBLEM, "3.10.9 (/", "with a Python from 3.11"),
        (check_python("3.13.0rc1", PYTHON), OK, "3.13.0rc1", ""),
        (check_trainer(OWN, OWN), OK, OWN, ""),
        (check_trainer(OWN, None), PROBLEM, "without trainjob-trainer", "trainjob-trainer[cpu]"),
        (check_trainer(OWN, "0.2.0"), NOTE, "0.1.0, with trainjob-trainer 0.2.0", "both of one version"),
        (check_tensorflow(None, REQUIREMENTS), PROBLEM, "not installed in this Python", "trainer[cpu]"),
        (check_tensorflow(Unknown("ImportError: libx"), REQUIREMENTS), PROBLEM,
         "imported: ImportError: libx", "repair the installation"),
        (tensorflow("2.21.0"), OK, "2.21.0, imported in 4.2 s", ""),
        (tensorflow("2.22.0rc0"), NOTE,
         "2.22.0rc0, imported in 4.2 s; tested: from 2.20 to below 2.22", "if training fails"),
        (tensorflow("2.9.1"), NOTE, "2.9.1", "if training"),
        (check_tensorflow(TENSORFLOW._replace(version="2.9.1"), ()), OK, "2.9.1", ""),
        (keras("3.15.1"), OK, "3.15.1", ""),
        (keras("3.16.0"), NOTE, "from 3.10 to below 3.16", "if"),
        (keras("2.19.0"), PROBLEM, "only in custom training loops", "unset TF_USE_LEGACY_KERAS"),
        (gpus(CUDA._replace(gpus=("H100", "H100")), 2), OK,
         "H100, H100 (TensorFlow for CUDA 12.5.1, driver 550.54)", ""),
        (gpus(CUDA, 0), OK, "none (CUDA_VISIBLE_DEVICES hides them)", ""),
        (gpus(TENSORFLOW, 1, "550.54\n550.54"), PROBLEM,
         "1 NVIDIA GPU, driver 550.54, and TensorFlow without CUDA", "pip install 'trainjob-trainer[gpu]'"),
        (gpus(CUDA, 1), PROBLEM, "and TensorFlow for CUDA 12.5.1 sees none", "tensorflow[and-cuda]"),
        (gpus(CUDA, 1, AWAY), PROBLEM, "sees none; no answer within 15 s", "nvidia-smi must list the GPUs"),
        (check_gpus(None, 2, "550.54", is_choosing=False), OK, "2 NVIDIA GPUs, driver 550.54", ""),
        (check_ports(12), OK, "12 free ones", ""),
        (check_ports(Unknown("found no free port")), PROBLEM, "no free port", "listen on 127.0.0.1"),
        (check_disk("runs", 10**11), OK, "100 GB free for runs", ""),
        (check_disk("runs", 5 * 10**9), NOTE, "5.0 GB free for runs", "trainjob run --folder"),
        (check_disk("runs", 5 * 10**8), PROBLEM, "500 MB free for runs", "free some space"),
        (check_disk("runs", Unknown("Read-only file system")), PROBLEM, "can't be written: Read", "writable"),
    ],
)  # fmt: skip
def test_this_machine(check: Check, verdict: Verdict, says: str, remedy: str) -> None:
    assert (check.verdict, says in check.found, remedy in check.remedy) == (verdict, True, True), check
    assert bool(check.remedy) is (verdict is not OK)


def test_what_is_missing_here_is_no_problem_for_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "look_for_tensorflow", lambda _python: None)
    by_need = {
        needed: {check.subject: check.verdict for check in check_here(tmp_path / "runs", needed=needed)}
        for needed in (True, False)
    }
    assert [verdicts["TensorFlow"] for verdicts in by_need.values()] == [PROBLEM, NOTE]
    assert list(by_need[True]) == list(by_need[False])
    subjects = ["Python", "trainjob", "TensorFlow", "GPUs", "ports", "disk"]
    assert list(by_need[True]) == [each for each in subjects if each in by_need[True]]
    assert not (tmp_path / "runs").exists()


URI = "s3://results/digits"


def bucket(*trial: str, store: str = "") -> Check:
    return check_bucket(URI, store, BucketTrial(*trial))


@pytest.mark.parametrize(
    ("check", "verdict", "says", "remedy"),
    [
        (bucket(), OK, f"{URI}: conditional writes are right", ""),
        (bucket(store="Amazon S3"), OK, f"{URI} (Amazon S3): conditional", ""),
        (bucket("create", "accepted"), PROBLEM, "(create), so two writers could not be told from each other",
         "use a store whose conditional writes are right"),
        (bucket("replace", "accepted", "", "k"), PROBLEM, "(replace), so two writers could not be told from "
         "each other; k is left there", "use a store"),
        (bucket("create", "refused"), PROBLEM, "refuses a conditional write that it must accept (create)",
         "try again; if it fails again, use a store"),
        (bucket("list", "stale"), PROBLEM, "doesn't show at once what has changed (list)", "use a store"),
        (bucket("replace", "EIO", f"{URI}: Not here (NotImplemented)"), PROBLEM, "can't replace: s3://",
         "try again; if it fails again, use a store"),
        (bucket("write", "EACCES", f"{URI}: Access Denied (AccessDenied)"), PROBLEM,
         f"can't write: {URI}: Access Denied (AccessDenied)", "this machine's clock"),
        (bucket("create", "EACCES", f"{URI}: Denied"), PROBLEM, "can't create", "credentials"),
        (bucket("delete", "EACCES", f"{URI}: Denied", "key"), PROBLEM, "Denied; key is left there", "delete"),
        (bucket("write", "EINVAL", f"{URI}: no bucket (NoSuchBucket)"), PROBLEM, "no bucket", "region"),
        (bucket("open", "ENOPKG", f"{URI} needs obstore"), PROBLEM, "can't open: s3://",
         "pip install 'trainjob-trainer[bucket]'"),
        (bucket("open", "EIO", f"{URI}: Invalid Access Key"), PROBLEM, "Invalid", "credentials, region"),
        (bucket("write", "EIO", f"{URI}: error sending request"), PROBLEM, "sending", "network, endpoint"),
        (check_bucket(URI, "", Unknown("no answer within 90 s")), PROBLEM, f"{URI}: no answer within 90 s",
         "delete what is left there under .tmp-doctor-"),
    ],
)  # fmt: skip
def test_a_bucket(check: Check, verdict: Verdict, says: str, remedy: str) -> None:
    assert (check.verdict, says in check.found, remedy in check.remedy) == (verdict, True, True), check
    assert bool(check.remedy) is (verdict is not OK)


@pytest.mark.parametrize(
    ("uri", "environ", "store"),
    [
        (URI, {}, "Amazon S3"),
        (URI, {"AWS_ENDPOINT_URL": ""}, "Amazon S3"),
        (URI, {"AWS_ENDPOINT_URL": "https://s3.eu-west-1.amazonaws.com"}, "Amazon S3"),
        (URI, {"AWS_ENDPOINT_URL": "https://0a1b.r2.cloudflarestorage.com"}, "Cloudflare R2"),
        (URI, {"AWS_ENDPOINT": "http://minio:9000"}, ""),
        (URI, {"AWS_ENDPOINT": "http://["}, ""),
        (URI, {"AWS_ENDPOINT_URL_S3": "http://minio", "AWS_ENDPOINT_URL": "https://sts.amazonaws.com"}, ""),
        ("gs://results/digits", {"AWS_ENDPOINT_URL": "http://minio"}, "Google Cloud Storage"),
        ("az://results/digits", {}, "Azure Blob"),
        ("az://results/digits", {"AZURE_STORAGE_USE_EMULATOR": "true"}, ""),
        ("abfss://results@account.dfs.core.windows.net/digits", {}, "Azure Blob"),
        ("https://0a1b.r2.cloudflarestorage.com/results", {}, "Cloudflare R2"),
        ("https://account.blob.core.windows.net/results", {}, "Azure Blob"),
        ("https://example.org/results", {}, ""),
        ("memory:///", {}, ""),
    ],
)  # fmt: skip
def test_a_store_is_named_only_if_it_is_known(uri: str, environ: dict[str, str], store: str) -> None:
    assert name_store(uri, environ) == store


def test_the_program_that_tries_a_bucket_is_read(tmp_path: Path) -> None:
    found = try_bucket([sys.executable, "-P"], "ftp://host/results")
    assert isinstance(found, BucketTrial)
    assert (found.step, found.why, found.left) == ("open", "EINVAL", "")
    assert try_bucket(["echo"], URI) == Unknown(
        f"unexpected output: '-m trainjob_trainer.checkpoint.bucket_trial {URI}'"
    )
    assert try_bucket([sys.executable, "-c", "raise ImportError('no trainer')"], URI) == Unknown(
        "ImportError: no trainer"
    )


def test_a_problem_of_a_bucket_is_one_also_for_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "look_for_tensorflow", lambda _python: None)
    monkeypatch.setattr(doctor, "try_bucket", lambda _python, _uri: BucketTrial("create", "accepted"))
    *others, last = check_here(tmp_path, needed=False, bucket=URI, environ={})
    assert (last.subject, last.verdict) == ("bucket", PROBLEM)
    assert not {check.verdict for check in others} & {PROBLEM}


def test_a_remedy_has_a_line_of_its_own() -> None:
    checks = [Check("Python", OK, "3.11.7"), Check("CRD", PROBLEM, "none", "install it")]
    assert list(describe("this machine", checks, width=7)) == [
        "this machine",
        "  ok       Python   3.11.7",
        "  problem  CRD      none",
        "                    -> install it",
    ]


def server(release: str | Unknown) -> Check:
    return check_server("https://10.0.0.1:6443", "default", release)


def controller(release: str, ready: int = 1) -> Check:
    labels = {"app.kubernetes.io/version": release}
    metadata = {"namespace": "a", "name": "b", "labels": labels}
    return check_controllers([{"metadata": metadata, "status": {"readyReplicas": ready}}], OWN)


def denied(*numbers: int) -> list[Check]:
    allowed = {each: index not in numbers for index, each in enumerate(PERMISSIONS)}
    return list(check_permissions(allowed, "default"))


def storage(**provisioners: str) -> Check:
    classes = [{"metadata": {"name": name}, "provisioner": kind} for name, kind in provisioners.items()]
    return check_storage(classes, (), "default")


def image(**state: dict[str, Any]) -> Check:
    check = check_probe({"status": {"containerStatuses": [{"name": "trainer", "state": state}]}}, "a/b:1")
    assert check is not None
    return check


@pytest.mark.parametrize(
    ("check", "verdict", "says", "remedy"),
    [
        (server("v1.34.1"), OK, "Kubernetes v1.34.1 at https://10.0.0.1:6443, namespace default", ""),
        (server(AWAY), PROBLEM, "https://10.0.0.1:6443: no answer", "VPN, proxy, login"),
        (server("v1.28.9"), PROBLEM, "v1.28.9", "1.29 or newer"),
        (server("v1.29.0-eks-1"), OK, "v1.29.0-eks-1", ""),
        (check_crd(OWN, OWN), OK, OWN, ""),
        (check_crd(None, OWN), PROBLEM, "no trainjobs.trainjob.dev", "install the chart"),
        (check_crd(Unknown("the API server doesn't allow it"), OWN), NOTE, "its version isn't known", ""),
        (check_crd("", OWN), NOTE, "of an unknown version", "of version 0.1.0"),
        (check_crd("0.0.9", OWN), NOTE, "0.0.9", "should upgrade the chart"),
        (check_crd("0.2.0", OWN), NOTE, "0.2.0", "upgrade this program"),
        (controller("0.1.0"), OK, "0.1.0 in a/b", ""),
        (controller("0.1.0", ready=0), PROBLEM, "a/b has no ready pod",
         "kubectl describe deployment b -n a"),
        (controller("0.0.9"), NOTE, "0.0.9 in a/b", "should upgrade the chart"),
        (check_controllers([], OWN), PROBLEM, "no Deployment of a controller", "install the chart"),
        (check_controllers(Unknown("not allowed"), OWN), NOTE, "can't be seen: not allowed", ""),
        (denied()[0], OK, f"all of {len(PERMISSIONS)} in default", ""),
        (denied(0)[0], PROBLEM, "create trainjobs in default (for submit)", "ClusterRole `edit`"),
        (denied(10)[0], NOTE, "create pods/exec in default (for cp)", "ClusterRole `edit`"),
        (check_permissions(AWAY, "default")[0], NOTE, "unknown: no answer", ""),
        (storage(gp3="ebs.csi.aws.com"), NOTE, "gp3 (ebs.csi.aws.com)", "on one node"),
        (storage(), NOTE, "no storage class", "nfs:SERVER:/FOLDER"),
        (check_storage([], ["training"], "default"), OK, "in default: training", ""),
        (check_storage(AWAY, [], "default"), NOTE, "can't be listed: no answer", ""),
        (image(terminated={"exitCode": 0, "message": "3.11.2 2.21.0"}), OK,
         "a/b:1 has Python 3.11.2, TensorFlow 2.21.0", ""),
        (image(terminated={"message": "3.11.2"}), PROBLEM, "and no TensorFlow", "or install it there"),
        (image(terminated={"message": "3.8.10 2.4.0"}), PROBLEM, "was pulled, but has Python 3.8.10",
         "Python 3.9 or newer"),
        (image(terminated={"exitCode": 128, "reason": "StartError"}), PROBLEM,
         "its Python can't be run: StartError, exit code 128", "an image with Python"),
        (image(waiting={"reason": "CreateContainerError", "message": 'exec: "python": not found'}), PROBLEM,
         "its Python can't be run: exec", "an image with Python"),
        (image(waiting={"reason": "ImagePullBackOff", "message": "no \x1b[1mhost"}), PROBLEM,
         "can't be pulled: no host", "imagePullSecret"),
        (image(waiting={"reason": "InvalidImageName"}), PROBLEM, "pulled: InvalidImageName", "correct the"),
    ],
)  # fmt: skip
def test_a_cluster(check: Check, verdict: Verdict, says: str, remedy: str) -> None:
    assert (check.verdict, says in check.found, remedy in check.remedy) == (verdict, True, True), check


def test_permissions_that_nothing_works_without_are_apart_from_the_others() -> None:
    remedy = "ask an administrator to bind the ClusterRole `edit` to you in default"
    needed = "you may not get trainjobs, list trainjobs in default (for get, wait, list)"
    others = "you may not list pods, watch pods in default (for logs, get NAME)"
    assert denied(1, 2, 7, 8) == [
        Check("permissions", PROBLEM, needed, remedy),
        Check("permissions", NOTE, others, remedy),
    ]


@pytest.mark.parametrize(
    ("provisioner", "system"),
    [
        ("efs.csi.aws.com", "Amazon EFS"),
        ("rook-ceph.cephfs.csi.ceph.com", "CephFS"),
        ("cephfs.csi.ceph.com", "CephFS"),
        ("rook-ceph.rbd.csi.ceph.com", ""),
        ("cluster.local/mine-nfs-subdir-external-provisioner", "NFS"),
        ("k8s-sigs.io/nfs-subdir-external-provisioner", "NFS"),
        ("rancher.io/local-path", ""),
    ],
)
def test_provisioners_of_volumes_for_several_nodes(provisioner: str, system: str) -> None:
    expected = f"classes for several nodes: a ({system})" if system else "no class is known"
    assert storage(a=provisioner).found.startswith(expected)


# Looks.


def test_a_look_that_never_ends_is_left_behind() -> None:
    forever = threading.Event()
    assert bounded(forever.wait, 0.01) == Unknown("no answer within 0.01 s")
    forever.set()


def test_a_look_that_fails_says_why(tmp_path: Path) -> None:
    assert bounded((tmp_path / "none").read_text) == Unknown("No such file or directory")


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("print('a', 'b')", "a b"),
        ("raise ImportError('no libx')", Unknown("ImportError: no libx")),
        ("import sys; sys.exit(3)", Unknown("exit code 3")),
    ],
)
def test_what_a_program_says(program: str, found: object) -> None:
    assert run_program([sys.executable, "-c", program], 60) == found


def test_a_program_that_never_ends_is_killed_with_its_children() -> None:
    program = "import subprocess as s; s.run(['sleep', '1000'])"
    assert run_program([sys.executable, "-c", program], 0.2) == Unknown("no answer within 0.2 s")


def test_a_program_that_is_missing() -> None:
    assert run_program(["/no/such-program"], 60) == Unknown("/no/such-program: No such file or directory")


def test_the_process_that_imports_tensorflow_is_read(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text(
        "from types import SimpleNamespace as s\n"
        "__version__ = '2.21.0'\n"
        "sysconfig = s(get_build_info=lambda: {'is_cuda_build': True, 'cuda_version': '12.5.1'})\n"
        "details = s(get_device_details=lambda gpu: {'device_name': 'H100'})\n"
        "config = s(list_physical_devices=lambda kind: [s(name='/gpu:0')], experimental=details)\n"
        "print('noise')\n"
    )
    (tmp_path / "keras.py").write_text("__version__ = '3.15.1'\n")
    python = ["env", f"PYTHONPATH={tmp_path}", sys.executable, "-P"]
    found = look_for_tensorflow(python)
    assert isinstance(found, TensorFlow)
    assert found._replace(seconds=0) == CUDA._replace(seconds=0, gpus=["H100"])
    (tmp_path / "keras.py").write_text("raise ImportError('broken')\n")
    assert look_for_tensorflow(python) == Unknown("ImportError: broken")


# The pod that pulls an image.


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"waiting": {"reason": "ContainerCreating"}},
        {"waiting": {"reason": "ErrImagePull", "message": "try again"}},
        {"running": {}},
    ],
)
def test_what_becomes_of_an_image_is_not_known_at_once(state: dict[str, Any]) -> None:
    pod = {"status": {"containerStatuses": [{"name": "trainer", "state": state}]}}
    assert check_probe(pod, "a") is None


def test_a_pod_that_was_evicted_says_nothing_about_the_image() -> None:
    check = check_probe(
        {"status": {"phase": "Failed", "reason": "Evicted", "message": "the node is full"}}, "a"
    )
    assert check is not None
    assert (check.verdict, check.found) == (PROBLEM, "the pod with a failed: the node is full")


def test_the_program_of_the_pod_says_what_the_image_has(tmp_path: Path) -> None:
    (container,) = build_probe("default", "a", "b", 60)["spec"]["containers"]
    program = container["command"][-1].replace("/dev/termination-log", str(tmp_path / "log"))
    assert run_program([sys.executable, "-c", program], 60) == ""
    said = (tmp_path / "log").read_text()
    assert said == f"{platform.python_version()} {version('tensorflow-cpu')}"
