from __future__ import annotations

from typing import Any

import pytest

from support.golden import Golden
from support.world.tfjobs import converted
from trainjob.api import parse
from trainjob.convert.mpijob import UnreadableLaunch, read_launch
from trainjob.core.names import replica_counts

USUAL = [
    *(
        "mpirun",
        "-np",
        "4",
        "--allow-run-as-root",
        "-bind-to",
        "none",
        "-map-by",
        "slot",
        "-x",
        "NCCL_DEBUG=INFO",
    ),
    *("-x", "LD_LIBRARY_PATH", "-mca", "pml", "ob1", "python", "train.py", "--epochs", "3"),
]


@pytest.mark.parametrize(
    ("words", "command", "count"),
    [
        (USUAL, ["python", "train.py", "--epochs", "3"], 4),
        (["horovodrun", "-np", "2", "--gloo", "python", "train.py"], ["python", "train.py"], 2),
        (["/usr/bin/mpiexec", "-n", "2", "./train"], ["./train"], 2),
        (["horovodrun", "--num-proc=3", "--", "python", "t.py"], ["python", "t.py"], 3),
        (["bash", "-c", "exec horovodrun -np 2 \\\n python 'my train.py'"], ["python", "my train.py"], 2),
        (["mpirun", "python", "t.py", "-np", "9"], ["python", "t.py", "-np", "9"], None),
        (
            [
                "mpirun",
                "--display-map",
                "-display-allocation",
                "--n",
                "2",
                "--rank-by",
                "slot",
                "--timeout",
                "9",
                "--bynode",
                "--mca",
                "btl",
                "^tcp",
                "-gmca",
                "a",
                "b",
                "--report-bindings",
                "./t",
            ],
            ["./t"],
            2,
        ),
        (
            ["mpiexec", "-ppn", "1", "-iface", "eth0", "-genvall", "-genv", "A", "b", "-l", "./t"],
            ["./t"],
            None,
        ),
        (
            [
                "horovodrun",
                "--max-num-proc",
                "4",
                "-np",
                "2",
                "--autotune",
                "--autotune-log-file",
                "/a",
                "./t",
            ],
            ["./t"],
            2,
        ),
    ],
)
def test_the_program_behind_the_launcher(words: list[str], command: list[str], count: int | None) -> None:
    launch = read_launch(words)
    assert (launch.command, launch.count) == (command, count)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["python", "train.py"],
        ["sh", "-c", "sleep 10 && mpirun python t.py"],
        ["sh", "-c", "mpirun python 't.py"],
        ["mpirun", "--unheard-of", "3", "python"],
        ["mpirun", "-np", "4"],
    ],
)
def test_what_is_no_plain_launch_is_refused(words: list[str], golden: Golden) -> None:
    with pytest.raises(UnreadableLaunch) as error:
        read_launch(words)
    golden(str(error.value))


def build_mpijob(command: list[str], worker: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    launcher = {
        "name": "launcher",
        "image": "acme/scans:1",
        "command": command,
        "env": [{"name": "LD_LIBRARY_PATH", "value": "/lib"}, {"name": "OTHER", "value": "1"}],
    }
    trains = {
        "name": "worker",
        "image": "acme/scans:1",
        "command": ["/usr/sbin/sshd", "-De"],
        **(worker or {}),
    }
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": "scans"},
        "spec": {
            "slotsPerWorker": 1,
            "runPolicy": {"cleanPodPolicy": "Running", "activeDeadlineSeconds": 60},
            "mpiReplicaSpecs": {
                "Launcher": {"replicas": 1, "template": {"spec": {"containers": [launcher]}}},
                "Worker": {"replicas": 4, "template": {"spec": {"containers": [trains]}}},
            },
            **spec,
        },
    }


def test_an_mpijob_of_the_usual_form_is_a_valid_trainjob(golden: Golden) -> None:
    conversion = converted(build_mpijob(USUAL, sshAuthMountPath="/home/mpi/.ssh"), claim="results")
    assert conversion.refusals == ()
    job = parse(conversion.manifest)
    assert replica_counts(job.spec) == {"worker": 4}
    assert job.spec.active_deadline_seconds == 60
    (container,) = conversion.manifest["spec"]["template"]["spec"]["containers"]
    assert container["command"] == ["python", "train.py", "--epochs", "3"]
    assert container["env"] == [
        {"name": "NCCL_DEBUG", "value": "INFO"},
        {"name": "LD_LIBRARY_PATH", "value": "/lib"},
    ]
    notes = {note.path: note.message for note in conversion.notes}
    golden(notes["spec.mpiReplicaSpecs.Launcher"])
    assert "left out" in notes["spec.sshAuthMountPath"]
    golden(notes["spec.mpiReplicaSpecs.Worker.template.spec.containers[0].command"])


def test_notes_name_the_fields_of_an_mpijob() -> None:
    notes = {note.path for note in converted(build_mpijob(USUAL)).notes}
    assert "spec.mpiReplicaSpecs" in notes
    assert not any("tfReplicaSpecs" in path for path in notes)


def test_each_slot_becomes_a_worker(golden: Golden) -> None:
    conversion = converted(build_mpijob(["horovodrun", "python", "t.py"], slotsPerWorker=2), claim="results")
    assert conversion.manifest["spec"]["worker"]["replicas"] == 8
    notes = {note.path: note.message for note in conversion.notes}
    golden(notes["spec.mpiReplicaSpecs.Worker.replicas"])


def test_elastic_horovod_becomes_restarts_in_place(golden: Golden) -> None:
    command = ["horovodrun", "--min-np", "2", "--host-discovery-script", "/hosts.sh", "python", "t.py"]
    golden(*(note.message for note in converted(build_mpijob(command), claim="results").notes))


@pytest.mark.parametrize(
    ("job", "path"),
    [
        (
            build_mpijob(["python", "launch.py"]),
            "spec.mpiReplicaSpecs.Launcher.template.spec.containers[0].command",
        ),
        (build_mpijob(USUAL, slotsPerWorker="many"), "spec.slotsPerWorker"),
        (build_mpijob(USUAL, mpiReplicaSpecs={"Worker": {}}), "spec.mpiReplicaSpecs.Launcher.template"),
        (build_mpijob(USUAL, mpiReplicaSpecs=None), "spec.mpiReplicaSpecs.Worker.template"),
    ],
)
def test_what_cannot_become_a_trainjob_is_refused_where_it_stands(job: dict[str, Any], path: str) -> None:
    assert path in [refusal.path for refusal in converted(job, claim="results").refusals]
