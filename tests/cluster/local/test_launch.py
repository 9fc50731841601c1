from pathlib import Path
from typing import Any

import pytest

from support.local.local_cluster import build_place, build_pod
from trainjob.cluster.local import CannotRunHere
from trainjob.cluster.local.launch import Launch, build_launch
from trainjob.cluster.local.machine import ReplicaPorts

HOME = Path("/home/me")
PORTS = {"digits-worker-0": ReplicaPorts(7001, 8001), "digits-worker-1": ReplicaPorts(7002, 8002)}


def _launch(pod: dict[str, Any], **machine: Any) -> Launch:
    return build_launch(pod, build_place(HOME, **machine), PORTS, Path("/tmp/private"))


def _refusals(pod: dict[str, Any], **machine: Any) -> tuple[str, ...]:
    with pytest.raises(CannotRunHere) as raised:
        _launch(pod, **machine)
    return raised.value.lines


def test_command_and_args_are_expanded_and_speak_of_this_machine() -> None:
    pod = build_pod(
        ["python", "train.py"],
        env=[{"name": "EPOCHS", "value": "3"}, {"name": "DIR", "value": "$(TRAINJOB_OUTPUT_DIR)/x"}],
        container={"args": ["--epochs=$(EPOCHS)", "--dir=$(DIR)", "$$(EPOCHS)", "$(HOME)",
                            "digits-worker-1.digits.default.svc:2222"]},
    )  # fmt: skip
    launch = _launch(pod)
    assert launch.argv == (
        "python", "train.py", "--epochs=3", "--dir=/home/me/runs/training/digits/x", "$(EPOCHS)", "$(HOME)",
        "127.0.0.1:7002",
    )  # fmt: skip
    assert launch.env["DIR"] == "/home/me/runs/training/digits/x"


def test_variables_see_earlier_ones_only_and_the_last_of_a_name_counts() -> None:
    env = [
        {"name": "A", "value": "$(B)"},
        {"name": "B", "value": "1"},
        {"name": "C", "value": "$(B)$(B)"},
        {"name": "B", "value": "2"},
        {"name": "D", "value": "$(B)"},
        {"name": "EMPTY"},
    ]
    found = _launch(build_pod(env=env)).env
    assert [found[name] for name in "ABCD"] == ["$(B)", "2", "11", "2"]
    assert found["EMPTY"] == ""


def test_the_environment_starts_from_the_callers() -> None:
    environ = {
        "PATH": "/bin",
        "LANG": "C",
        "TF_CONFIG": "outer",
        "TRAINJOB_UID": "outer",
        "PYTHONPATH": "/mine",
    }
    launch = _launch(build_pod(), environ=environ, programs=Path("/venv/bin"))
    assert launch.env["LANG"] == "C"
    assert "TF_CONFIG" not in launch.env
    assert "TRAINJOB_UID" not in launch.env
    assert launch.env["PATH"] == "/venv/bin:/bin"
    assert launch.env["PYTHONPATH"] == "/opt/bootstrap:/mine"
    assert launch.env["PYTHONUNBUFFERED"] == "1"
    assert launch.env["TRAINJOB_PROGRESS_FILE"] == "/tmp/private/progress.json"
    assert launch.env["no_grpc_proxy"] == "127.0.0.1"


def test_the_manifest_wins_over_the_callers_environment() -> None:
    env = [{"name": "PYTHONUNBUFFERED", "value": "0"}, {"name": "PYTHONPATH", "value": "/output/lib"}]
    launch = _launch(build_pod(env=env), environ={"PATH": "/bin", "PYTHONPATH": "/mine"})
    assert launch.env["PYTHONUNBUFFERED"] == "0"
    assert launch.env["PYTHONPATH"] == "/opt/bootstrap:/home/me/runs/training/lib"


WORLD = '{"cluster": {"worker": ["a", "b"]}, "task": {}}'
WITH_A_CHIEF = '{"cluster": {"chief": ["c"], "worker": ["a", "b"]}, "task": {}}'


@pytest.mark.parametrize(
    ("role", "index", "world", "stays"),
    [
        ("worker", 0, WORLD, True),
        ("worker", 1, WORLD, False),
        ("evaluator", 0, WORLD, True),
        ("chief", 0, WITH_A_CHIEF, True),
        ("worker", 0, WITH_A_CHIEF, False),
    ],
)
def test_files_that_go_to_a_bucket_stay_on_this_machine_too(
    role: str, index: int, world: str, stays: bool
) -> None:
    env = [
        {"name": "TRAINJOB_OUTPUT_URI", "value": "s3://output/digits"},
        {"name": "TF_CONFIG", "value": world},
    ]
    mounts = {"volumeMounts": [{"name": "trainjob-output", "mountPath": "/output"}]}
    volumes = {"volumes": [{"name": "trainjob-output", "emptyDir": {}}]}
    pod = build_pod(role=role, index=index, env=env, container=mounts, spec=volumes)
    launch = _launch(pod)
    folder = "/home/me/runs/output" if stays else "/tmp/private/volumes/trainjob-output"
    assert str(launch.root) == f"{folder}/digits"
    assert launch.env["TRAINJOB_OUTPUT_URI"] == "s3://output/digits"
    assert any("s3://output/digits" in note for note in launch.notes) is stays

    instead = _launch(pod, volumes={"trainjob-output": Path("/here")})
    assert str(instead.root) == "/here/digits"
    assert "TRAINJOB_OUTPUT_URI" not in instead.env


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "digits-worker-0-aaaaaaaa"),
        ("metadata.namespace", "default"),
        ("metadata.labels['trainjob.dev/role']", "worker"),
        ("metadata.annotations['none']", ""),
        ("spec.nodeName", "localhost"),
        ("spec.serviceAccountName", "default"),
        ("status.podIP", "127.0.0.1"),
    ],
)
def test_fields_of_the_pod_are_known(path: str, value: str) -> None:
    pod = build_pod(env=[{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}])
    assert _launch(pod).env["X"] == value


SECRET = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "token"}}}


@pytest.mark.parametrize(
    ("source", "what"),
    [
        (SECRET["valueFrom"], "Secret hub (key token)"),
        ({"configMapKeyRef": {"name": "settings", "key": "a"}}, "ConfigMap settings (key a)"),
        ({"resourceFieldRef": {"resource": "limits.cpu"}}, "resourceFieldRef limits.cpu"),
        ({"fieldRef": {"fieldPath": "status.noSuch"}}, "fieldRef status.noSuch"),
    ],
)
def test_what_only_a_cluster_keeps_is_refused_with_the_way_out(source: dict[str, Any], what: str) -> None:
    lines = _refusals(build_pod(env=[{"name": "TOKEN", "valueFrom": source}]))
    assert lines == (f"env TOKEN comes from {what}, which this machine doesn't have: export TOKEN=... first",)


def test_the_callers_environment_stands_in_for_a_secret_and_is_left_as_it_is() -> None:
    pod = build_pod(env=[SECRET, {"name": "USES", "value": "<$(TOKEN)>"}])
    launch = _launch(pod, environ={"TOKEN": "/output/$(A)"})
    assert launch.env["TOKEN"] == "/output/$(A)"  # noqa: S105 - no password
    assert launch.env["USES"] == "</home/me/runs/training/$(A)>"


def test_an_optional_secret_is_left_out() -> None:
    source = {"secretKeyRef": {"name": "hub", "key": "token", "optional": True}}
    launch = _launch(build_pod(env=[{"name": "TOKEN", "valueFrom": source}]))
    assert "TOKEN" not in launch.env


def test_env_from_is_noted() -> None:
    launch = _launch(build_pod(container={"envFrom": [{"secretRef": {"name": "hub"}}]}))
    assert any(note.startswith("envFrom: Secret hub doesn't exist on this machine") for note in launch.notes)


@pytest.mark.parametrize(
    ("source", "folder"),
    [
        ({"persistentVolumeClaim": {"claimName": "data"}}, "/home/me/runs/data"),
        ({"nfs": {"server": "s", "path": "/p"}}, "/home/me/runs/extra"),
        ({"csi": {"driver": "d"}}, "/home/me/runs/extra"),
        ({"ephemeral": {}}, "/home/me/runs/extra"),
        ({"emptyDir": {}}, "/tmp/private/volumes/extra"),
        ({}, "/tmp/private/volumes/extra"),
        ({"hostPath": {"path": "/srv/data"}}, "/srv/data"),
        ({"secret": {"secretName": "s", "optional": True}}, "/tmp/private/volumes/extra"),
    ],
)
def test_volumes_become_folders(source: dict[str, Any], folder: str) -> None:
    launch = _launch(_with_volume(source))
    assert launch.env["EXTRA"] == f"{folder}/file"


@pytest.mark.parametrize("kind", ["configMap", "secret", "projected", "downwardAPI", "gcePersistentDisk"])
def test_volumes_of_a_cluster_need_a_folder(kind: str) -> None:
    pod = _with_volume({kind: {"name": "x"}})
    assert _refusals(pod) == (
        f"volume extra ({kind}) exists only in a cluster: give a folder for it with --volume extra=FOLDER",
    )
    launch = _launch(pod, volumes={"extra": Path("/here")})
    assert launch.env["EXTRA"] == "/here/file"
    assert Path("/here") not in launch.folders


def test_a_volume_whose_source_is_null_is_an_empty_folder() -> None:
    launch = _launch(_with_volume({"hostPath": None}))
    assert launch.env["EXTRA"] == "/tmp/private/volumes/extra/file"


def test_a_sub_path_is_a_folder_within() -> None:
    mounts = [
        {"name": "out", "mountPath": "/output", "readOnly": True},
        {"name": "out", "mountPath": "/output/digits/evaluator", "subPath": "digits/evaluator"},
        {"name": "out", "mountPath": "/scratch", "subPathExpr": "scratch/$(NAME)"},
    ]
    env = [
        {"name": "NAME", "value": "n"},
        {"name": "TEXT", "value": "/output/digits/evaluator/a:/output/digits/b:/scratch/c"},
    ]
    launch = _launch(build_pod(env=env, container={"volumeMounts": mounts}))
    root = "/home/me/runs/training"
    assert launch.env["TEXT"] == f"{root}/digits/evaluator/a:{root}/digits/b:{root}/scratch/n/c"


def test_output_and_root_are_known() -> None:
    launch = _launch(build_pod(role="evaluator"))
    assert launch.output == Path("/home/me/runs/training/digits/evaluator")
    assert launch.root == Path("/home/me/runs/training/digits")


def test_an_output_elsewhere_stays_as_it_is() -> None:
    pod = build_pod(
        env=[
            {"name": "TRAINJOB_OUTPUT_DIR", "value": "gs://bucket/output/digits"},
            {"name": "TRAINJOB_CHECKPOINT_DIR", "value": "gs://bucket/output/digits/checkpoints"},
        ]
    )
    launch = _launch(pod)
    assert (launch.output, launch.root) == (None, None)
    assert launch.env["TRAINJOB_OUTPUT_DIR"] == "gs://bucket/output/digits"


def test_every_reason_is_named_at_once() -> None:
    pod = _with_volume({"secret": {"secretName": "s"}})
    pod["spec"]["containers"][0]["env"].append(SECRET)
    assert len(_refusals(pod)) == 2


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ({"initContainers": [{"name": "fetch"}]}, "init container 'fetch' can't run here"),
        ({"containers": [{"name": "trainer", "command": ["x"]}, {"name": "proxy"}]}, "container 'proxy'"),
        ({"containers": [{"name": "trainer", "image": "x"}]}, "has no command"),
        ({"containers": []}, "there is no container 'trainer'"),
    ],
)  # fmt: skip
def test_other_containers_are_refused(spec: dict[str, Any], line: str) -> None:
    assert line in _refusals(build_pod(spec=spec))[0]


def test_a_mount_without_its_volume_is_refused() -> None:
    pod = build_pod(container={"volumeMounts": [{"name": "nowhere", "mountPath": "/x"}]})
    assert "there is no volume 'nowhere'" in _refusals(pod)[0]


def test_working_dir() -> None:
    inside = build_pod(container={"workingDir": "/output/src"})
    elsewhere = build_pod(container={"workingDir": "/app"})
    assert _launch(build_pod()).cwd == HOME
    assert _launch(inside, is_folder=lambda _: True).cwd == Path("/home/me/runs/training/src")
    launch = _launch(elsewhere, is_folder=lambda _: False)
    assert launch.cwd == HOME
    assert "workingDir /app doesn't exist on this machine: commands start in /home/me" in launch.notes


GPU = {"resources": {"limits": {"nvidia.com/gpu": 1, "cpu": "4"}}}


@pytest.mark.parametrize(
    ("container", "machine", "visible", "note"),
    [
        ({}, {}, None, None),
        (GPU, {}, None, "this machine has none"),
        (GPU, {"gpus": ("0", "1"), "gpus_of": {"digits-worker-0": ("1",)}}, "1", None),
        (GPU, {"gpus": ("0",)}, "-1", "more GPUs than the 1 of this machine"),
        ({}, {"gpus": ("0",)}, "-1", "GPUs here are not used (1)"),
        ({}, {"gpus": ("0",), "gpus_of": {"digits-worker-1": ("0",)}}, "-1", None),
    ],
)
def test_gpus(
    container: dict[str, Any], machine: dict[str, Any], visible: str | None, note: str | None
) -> None:
    launch = _launch(build_pod(container=container), **machine)
    assert launch.env.get("CUDA_VISIBLE_DEVICES") == visible
    about_gpus = [text for text in launch.notes if "GPU" in text]
    assert len(about_gpus) == (note is not None)
    assert note is None or note in about_gpus[0]


def test_the_image_is_named_as_unused() -> None:
    assert any("image acme/digits:1 is not used" in note for note in _launch(build_pod()).notes)


def test_the_grace_period_is_kubernetes_own_by_default() -> None:
    assert _launch(build_pod()).grace_seconds == 30
    assert _launch(build_pod(spec={"terminationGracePeriodSeconds": 5})).grace_seconds == 5
    assert _launch(build_pod(spec={"terminationGracePeriodSeconds": None})).grace_seconds == 30


@pytest.mark.parametrize("asked", [-1, 10**390])
def test_a_grace_period_that_no_clock_knows_is_bounded(asked: int) -> None:
    assert 0 <= _launch(build_pod(spec={"terminationGracePeriodSeconds": asked})).grace_seconds < 1e9


@pytest.mark.parametrize(
    "text",
    [
        "{{ 7*7 }}",
        "a: b\n- c",
        "quote \" and ' and \\",
        "emoji \U0001f600",
        "",
        " spaces ",
        "x" * 5000,
        "%(A)s %s {0}",
    ],
)
def test_strings_come_out_unchanged(text: str) -> None:
    launch = _launch(build_pod(["echo", text], env=[{"name": "TEXT", "value": text}]))
    assert launch.argv == ("echo", text)
    assert launch.env["TEXT"] == text


def _with_volume(source: dict[str, Any]) -> dict[str, Any]:
    pod = build_pod(env=[{"name": "EXTRA", "value": "/extra/file"}])
    pod["spec"]["volumes"].append({"name": "extra", **source})
    pod["spec"]["containers"][0]["volumeMounts"].append({"name": "extra", "mountPath": "/extra"})
    return pod
