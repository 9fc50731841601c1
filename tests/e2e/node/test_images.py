"""The built images, looked at from inside a restricted pod whose root file system is read-only."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testbed import images
from testbed.claims import NodeCluster

EXAMPLES = Path(__file__).parents[3] / "examples"
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}

# Printed as one JSON line. The size is that of all files of the image: folders on other devices are mounts.
LOOK = """
import importlib.util, json, os, shutil, subprocess, sys
seen, size, image = set(), 0, os.lstat("/").st_dev
for folder, folders, files in os.walk("/"):
    folders[:] = [one for one in folders if os.lstat(os.path.join(folder, one)).st_dev == image]
    for at in (os.lstat(os.path.join(folder, file)) for file in files):
        if (at.st_dev, at.st_ino) not in seen:
            seen.add((at.st_dev, at.st_ino))
            size += at.st_size
def refuses(path):
    try:
        open(path, "w").close()
    except OSError as error:
        return error.strerror
names = ("tensorflow", "keras", "trainjob", "trainjob_trainer", "obstore", "kubernetes", "pip")
packages = [name for name in names if importlib.util.find_spec(name)]
def says(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    return [done.returncode, done.stdout.strip() or done.stderr[-2000:]]
facts = dict(size=size, user=os.getuid(), packages=packages, root=refuses("/x"), tmp=refuses("/tmp/x"),
             home=os.path.expanduser("~"), folder=os.getcwd(), files=sorted(os.listdir(".")))
facts["said"] = [says(*json.loads(command)) for command in sys.argv[1:]]
print(json.dumps(facts))
"""


def look(cluster: NodeCluster, namespace: str, name: str, image: str, *commands: list[str]) -> dict[str, Any]:
    """What is seen in a pod of the image; `said` holds status and output of each command."""
    arguments = [json.dumps(command) for command in commands]
    container = {
        "name": "look",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python", "-c", LOOK, *arguments],
        "securityContext": {
            "runAsNonRoot": True,
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    cluster.apply(pod, namespace=namespace)
    wait = ("wait", f"pod/{name}", "-n", namespace, "--for=jsonpath={.status.phase}=Succeeded")
    cluster.kubectl(*wait, "--timeout=240s", timeout=250)
    facts: dict[str, Any] = json.loads(cluster.kubectl("logs", name, "-n", namespace).splitlines()[-1])
    return facts


@pytest.fixture(scope="module")
def namespace(node_cluster: NodeCluster) -> Iterator[str]:
    name = node_cluster.create_namespace(labels=RESTRICTED)
    yield name
    node_cluster.delete_namespace(name)


@pytest.fixture(scope="module")
def operator(node_cluster: NodeCluster, namespace: str) -> dict[str, Any]:
    bundle = "from trainjob.cluster.agents.bundle import build_bundle; print(len(build_bundle()))"
    commands = (
        ["trainjob", "--version"],
        ["python", "-c", bundle],
        ["trainjob", "controller", "--help"],
        ["trainjob", "convert", "--help"],
        ["trainjob", "validate", "--help"],
    )
    return look(node_cluster, namespace, "operator", images.operator().name, *commands)


@pytest.fixture(scope="module")
def trainer(node_cluster: NodeCluster, namespace: str) -> dict[str, Any]:
    imports = (
        "import tensorflow, keras, trainjob_trainer, obstore; "
        "print(tensorflow.__version__, keras.__version__)"
    )
    helped = "import sys, keras; print('trainjob_trainer.session' in sys.modules)"
    task = json.dumps({"cluster": {"worker": ["127.0.0.1:2222"]}, "task": {"type": "worker", "index": 0}})
    commands = (["python", "-c", imports], ["env", f"TF_CONFIG={task}", "python", "-c", helped])
    return look(node_cluster, namespace, "trainer", images.trainer().name, *commands)


@pytest.fixture(scope="module")
def digits(node_cluster: NodeCluster, namespace: str) -> dict[str, Any]:
    return look(node_cluster, namespace, "digits", images.digits().name, ["python", "-c", "import digits"])


@pytest.mark.parametrize("image", ["operator", "trainer", "digits"])
def test_it_runs_without_root_on_a_read_only_root(image: str, request: pytest.FixtureRequest) -> None:
    facts = request.getfixturevalue(image)
    assert facts["user"] == 65532
    assert facts["root"] == "Read-only file system"
    assert facts["tmp"] is None
    assert facts["home"] == "/tmp"


def test_the_operator_image_is_small(operator: dict[str, Any]) -> None:
    assert operator["size"] < 200_000_000
    assert operator["packages"] == ["trainjob", "trainjob_trainer"]


def test_the_operator_image_answers(operator: dict[str, Any]) -> None:
    version, bundle, controller, *others = operator["said"]
    assert version == [0, f"trainjob, version {images.version()}"]
    assert bundle[0] == 0
    assert int(bundle[1]) > 10_000
    assert controller[0] == 0
    assert "--leader-elect" in controller[1]
    assert [status for status, _ in others] == [0, 0]


def test_the_trainer_image_has_tensorflow_and_the_library(trainer: dict[str, Any]) -> None:
    assert trainer["packages"] == ["tensorflow", "keras", "trainjob_trainer", "obstore", "pip"]
    assert trainer["folder"] == "/workspace"
    assert trainer["said"][0][0] == 0, trainer["said"][0][1]
    assert trainer["said"][0][1].splitlines()[-1].split()[0].startswith("2.")


def test_an_unmodified_script_is_helped_in_the_trainer_image(trainer: dict[str, Any]) -> None:
    assert trainer["said"][1][0] == 0, trainer["said"][1][1]
    assert trainer["said"][1][1].splitlines()[-1] == "True"


def test_the_example_image_has_the_examples_and_what_they_import(digits: dict[str, Any]) -> None:
    # Horovod's script has an image of its own, with another TensorFlow.
    scripts = {path.name for path in EXAMPLES.glob("*.py")} - {"horovod_digits.py"}
    assert scripts <= set(digits["files"])
    assert digits["said"][0][0] == 0, digits["said"][0][1]
