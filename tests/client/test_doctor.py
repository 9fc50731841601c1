"""What `trainjob doctor` says about what it has found, and that its looks end."""

from __future__ import annotations

import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trainjob.cli.doctor import describe
from trainjob.client import doctor_looks
from trainjob.client.doctor import (
    PERMISSIONS,
    Check,
    Cluster,
    Controller,
    Here,
    Image,
    TensorFlow,
    Unknown,
    Verdict,
    check_cluster,
    check_here,
    is_healthy,
    shares_volumes,
)
from trainjob.client.doctor_looks import bounded, build_probe, look_for_tensorflow, read_probe, run_program

OK, NOTE, PROBLEM = Verdict.OK, Verdict.NOTE, Verdict.PROBLEM
AWAY = Unknown("no answer within 15 s")

TENSORFLOW = TensorFlow(version="2.21.0", keras="3.15.1", seconds=4.21)
CUDA = replace(TENSORFLOW, cuda="12.5.1")
HERE = Here(
    python="3.11.7",
    python_range="<3.14,>=3.11",
    program="/venv/bin/python",
    trainer="0.1.0",
    own="0.1.0",
    requirements=(
        "keras<3.16,>=3.10; extra == 'cpu'",
        "tensorflow-cpu<2.22,>=2.20; (sys_platform == 'linux') and extra == 'cpu'",
        "tensorflow[and-cuda]<2.22,>=2.20; extra == 'gpu'",
    ),
    tensorflow=TENSORFLOW,
    ports=12,
    free=10**11,
)
CLUSTER = Cluster(
    server="https://10.0.0.1:6443",
    version="v1.34.1",
    crd="0.1.0",
    controllers=(Controller(where="trainjob-system/trainjob", version="0.1.0", ready=2),),
    allowed=dict.fromkeys(PERMISSIONS, True),
    classes={"shared": "nfs.csi.k8s.io"},
)


def test_a_machine_with_everything() -> None:
    checks = check_here(HERE, needed=True)
    assert [(check.subject, check.verdict, check.remedy) for check in checks] == [
        (subject, OK, "")
        for subject in ("Python", "trainjob", "TensorFlow", "Keras", "GPUs", "ports", "disk")
    ]
    assert list(describe("this machine", checks[:1], width=10)) == [
        "this machine",
        "  ok       Python      3.11.7 (/venv/bin/python)",
    ]


@pytest.mark.parametrize(
    ("found", "subject", "verdict", "says", "remedy"),
    [
        ({"python": "3.14.0"}, "Python", PROBLEM, "3.14.0 (/venv", "with a Python from 3.11 to below 3.14"),
        ({"python": "3.10.9"}, "Python", PROBLEM, "3.10.9 (/venv", "with a Python from 3.11"),
        ({"python": "3.13.0rc1"}, "Python", OK, "3.13.0rc1", ""),
        ({"trainer": None}, "trainjob", PROBLEM, "without trainjob-trainer", "trainjob-trainer[cpu]"),
        ({"trainer": "0.2.0"}, "trainjob", NOTE, "0.1.0, with trainjob-trainer 0.2.0", "both of one version"),
        ({"tensorflow": None}, "TensorFlow", PROBLEM, "not installed in this Python", "trainer[cpu]"),
        ({"tensorflow": Unknown("ImportError: libx")}, "TensorFlow", PROBLEM, "imported: ImportError: libx",
         "repair the installation"),
        ({"tensorflow": replace(TENSORFLOW, version="2.22.0rc0")}, "TensorFlow", NOTE,
         "2.22.0rc0, imported in 4.2 s; tested are versions from 2.20 to below 2.22", "if training fails"),
        ({"tensorflow": replace(TENSORFLOW, version="2.9.1")}, "TensorFlow", NOTE, "2.9.1", "if training"),
        ({"tensorflow": replace(TENSORFLOW, keras="3.16.0")}, "Keras", NOTE, "from 3.10 to below 3.16", "if"),
        ({"tensorflow": replace(TENSORFLOW, keras="2.19.0")}, "Keras", PROBLEM, "only in loops of your own",
         "unset TF_USE_LEGACY_KERAS"),
        ({"tensorflow": replace(CUDA, version="2.9.1"), "requirements": ()}, "TensorFlow", OK, "2.9.1", ""),
        ({"tensorflow": replace(CUDA, gpus=("H100", "H100")), "devices": ("0", "1"), "driver": "550.54"},
         "GPUs", OK, "H100, H100 (TensorFlow for CUDA 12.5.1, driver 550.54)", ""),
        ({"tensorflow": CUDA, "is_choosing": True}, "GPUs", OK, "none (CUDA_VISIBLE_DEVICES hides them)", ""),
        ({"devices": ("0",), "driver": "550.54"}, "GPUs", PROBLEM,
         "1 NVIDIA GPU, driver 550.54, and TensorFlow without CUDA", "pip install 'trainjob-trainer[gpu]'"),
        ({"tensorflow": CUDA, "devices": ("0",), "driver": "550.54"}, "GPUs", PROBLEM,
         "and TensorFlow for CUDA 12.5.1 sees none", "tensorflow[and-cuda]"),
        ({"tensorflow": CUDA, "devices": ("0",), "driver": AWAY}, "GPUs", PROBLEM,
         "sees none; no answer within 15 s", "nvidia-smi must list the GPUs"),
        ({"ports": Unknown("found no free port")}, "ports", PROBLEM, "no free port", "listen on 127.0.0.1"),
        ({"free": 5 * 10**9}, "disk", NOTE, "5.0 GB free for runs", "trainjob run --folder"),
        ({"free": 5 * 10**8}, "disk", PROBLEM, "500 MB free for runs", "free some space"),
        ({"free": Unknown("Read-only file system")}, "disk", PROBLEM, "can't be written: Read", "writable"),
    ],
)  # fmt: skip
def test_this_machine(found: dict[str, Any], subject: str, verdict: Verdict, says: str, remedy: str) -> None:
    checks = {check.subject: check for check in check_here(replace(HERE, **found), needed=True)}
    check = checks.pop(subject)
    assert (check.verdict, says in check.found, remedy in check.remedy) == (verdict, True, True), check
    assert bool(check.remedy) is (verdict is not OK)
    others = {other.verdict for other in checks.values()}
    assert others <= {OK}, checks


def test_what_is_missing_here_is_no_problem_for_a_cluster() -> None:
    checks = check_here(replace(HERE, tensorflow=None), needed=False)
    assert {check.verdict for check in checks} == {OK, NOTE}
    assert is_healthy(checks)


def test_a_cluster_with_everything() -> None:
    checks = check_cluster(CLUSTER, "0.1.0")
    assert [(check.subject, check.verdict, check.remedy) for check in checks] == [
        (subject, OK, "") for subject in ("cluster", "CRD", "controller", "permissions", "storage")
    ]
    assert checks[0].found == "Kubernetes v1.34.1 at https://10.0.0.1:6443, namespace default"


def denied(*numbers: int) -> dict[str, Any]:
    return {"allowed": {each: index not in numbers for index, each in enumerate(PERMISSIONS)}}


def image(says: str, *, pulled: bool = True) -> dict[str, Any]:
    return {"image": Image(name="a/b:1", pulled=pulled, says=says)}


@pytest.mark.parametrize(
    ("found", "subject", "verdict", "says", "remedy"),
    [
        ({"server": Unknown("no kubeconfig x")}, "kubeconfig", NOTE, "no kubeconfig x", "KUBECONFIG"),
        ({"server": Unknown("no kubeconfig"), "asked": True}, "kubeconfig", PROBLEM, "no", "KUBECONFIG"),
        ({"version": AWAY}, "cluster", PROBLEM, "https://10.0.0.1:6443: no answer", "VPN, proxy, login"),
        ({"version": "v1.28.9"}, "cluster", PROBLEM, "v1.28.9", "1.29 or newer"),
        ({"version": "v1.29.0-eks-1"}, "cluster", OK, "v1.29.0-eks-1", ""),
        ({"crd": None}, "CRD", PROBLEM, "no trainjobs.trainjob.dev", "install the chart"),
        ({"crd": Unknown("the API server doesn't allow it")}, "CRD", NOTE, "its version isn't known", ""),
        ({"crd": ""}, "CRD", NOTE, "of an unknown version", "of version 0.1.0"),
        ({"crd": "0.0.9"}, "CRD", NOTE, "0.0.9", "should upgrade the chart"),
        ({"crd": "0.2.0"}, "CRD", NOTE, "0.2.0", "upgrade this program"),
        ({"controllers": ()}, "controller", PROBLEM, "no Deployment of one", "install the chart"),
        ({"controllers": Unknown("not allowed")}, "controller", NOTE, "can't be seen: not allowed", ""),
        ({"controllers": (Controller(where="a/b", version="0.1.0", ready=0),)}, "controller", PROBLEM,
         "a/b has no pod that is ready", "kubectl describe deployment b -n a"),
        ({"controllers": (Controller(where="a/b", version="0.0.9", ready=1),)}, "controller", NOTE,
         "0.0.9 in a/b", "should upgrade the chart"),
        (denied(0), "permissions", PROBLEM, "create trainjobs in default (for submit)", "ClusterRole `edit`"),
        (denied(10), "permissions", NOTE, "create pods/exec in default (for cp)", "ClusterRole `edit`"),
        ({"allowed": AWAY}, "permissions", NOTE, "can't be told: no answer", ""),
        ({"classes": {"gp3": "ebs.csi.aws.com"}}, "storage", NOTE, "gp3 (ebs.csi.aws.com)", "on one node"),
        ({"classes": {}}, "storage", NOTE, "no storage class", "nfs:SERVER:/FOLDER"),
        ({"classes": {}, "shared_claims": ("training",)}, "storage", OK, "in default: training", ""),
        ({"classes": AWAY, "shared_claims": AWAY}, "storage", NOTE, "can't be listed: no answer", ""),
        (image("3.11.2 2.21.0"), "image", OK, "a/b:1 has Python 3.11.2, TensorFlow 2.21.0", ""),
        (image("3.11.2"), "image", PROBLEM, "and no TensorFlow", "or install it there"),
        (image("3.8.10 2.4.0"), "image", PROBLEM, "is pulled, and has Python 3.8.10", "Python 3.9 or newer"),
        (image('exec: "python": not found'), "image", PROBLEM, "its Python can't be run: exec",
         "an image with Python"),
        (image("no host", pulled=False), "image", PROBLEM, "can't be pulled: no host", "imagePullSecret"),
        ({"image": Unknown("a/b:1 isn't pulled after 180 s")}, "image", PROBLEM, "after 180 s", "get events"),
    ],
)  # fmt: skip
def test_a_cluster(found: dict[str, Any], subject: str, verdict: Verdict, says: str, remedy: str) -> None:
    checks = {check.subject: check for check in check_cluster(replace(CLUSTER, **found), "0.1.0")}
    check = checks.pop(subject)
    assert (check.verdict, says in check.found, remedy in check.remedy) == (verdict, True, True), check
    assert {other.verdict for other in checks.values()} <= {OK}, checks
    assert is_healthy([check]) is (verdict is not PROBLEM)


def test_permissions_that_nothing_works_without_are_apart_from_the_others() -> None:
    checks = check_cluster(replace(CLUSTER, **denied(1, 2, 7, 8)), "0.1.0")
    assert [check for check in checks if check.subject == "permissions"] == [
        Check(
            "permissions",
            PROBLEM,
            "you may not get trainjobs, list trainjobs in default (for get, wait, list)",
            "have an administrator bind the ClusterRole `edit` to you in default",
        ),
        Check(
            "permissions",
            NOTE,
            "you may not list pods, watch pods in default (for logs, get NAME)",
            "have an administrator bind the ClusterRole `edit` to you in default",
        ),
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
    assert shares_volumes(provisioner) == system


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
    assert replace(found, seconds=0) == replace(CUDA, seconds=0, gpus=("H100",))
    (tmp_path / "keras.py").write_text("raise ImportError('broken')\n")
    assert look_for_tensorflow(python) == Unknown("ImportError: broken")


# The pod that pulls an image.


@pytest.mark.parametrize(
    ("status", "found"),
    [
        ({}, None),
        ({"waiting": {"reason": "ContainerCreating"}}, None),
        ({"waiting": {"reason": "ErrImagePull", "message": "try again"}}, None),
        ({"running": {}}, None),
        ({"waiting": {"reason": "ImagePullBackOff", "message": "no \x1b[1mhost"}}, ("no host", False)),
        ({"waiting": {"reason": "InvalidImageName"}}, ("InvalidImageName", False)),
        ({"waiting": {"reason": "CreateContainerError", "message": "no python"}}, ("no python", True)),
        ({"terminated": {"exitCode": 0, "message": "3.11.2 2.21.0"}}, ("3.11.2 2.21.0", True)),
        ({"terminated": {"exitCode": 128, "reason": "StartError"}}, ("StartError, exit code 128", True)),
    ],
)
def test_what_became_of_an_image(status: dict[str, Any], found: tuple[str, bool] | None) -> None:
    pod = {"status": {"containerStatuses": [{"name": "trainer", "state": status}]}}
    expected = None if found is None else Image(name="a", pulled=found[1], says=found[0])
    assert read_probe(pod, "a") == expected


def test_a_pod_that_was_evicted_says_nothing_about_the_image() -> None:
    status = {"phase": "Failed", "reason": "Evicted", "message": "the node is full"}
    assert read_probe({"status": status}, "a") == Unknown("the pod with a failed: the node is full")


def test_the_program_of_the_pod_says_what_the_image_has(tmp_path: Path) -> None:
    (container,) = build_probe("default", "a", "b", 60)["spec"]["containers"]
    program = container["command"][-1].replace("/dev/termination-log", str(tmp_path / "log"))
    assert run_program([sys.executable, "-c", program], 60) == ""
    said = (tmp_path / "log").read_text()
    assert said == f"{doctor_looks.platform.python_version()} {doctor_looks.version('tensorflow-cpu')}"
