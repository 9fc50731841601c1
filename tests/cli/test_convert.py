import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from support.golden import Golden
from support.world.tfjobs import SAMPLES, build_replicas, build_tfjob
from trainjob.api import parse, read_documents
from trainjob.cli import main
from trainjob.convert import is_convertible, list_items

CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}}


def convert(*arguments: Path | str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["convert", *map(str, arguments)], input=stdin)


def write(folder: Path, *objects: dict[str, Any], name: str = "tfjob.yaml") -> Path:
    file = folder / name
    file.write_text("\n---\n".join(json.dumps(item) for item in objects))
    return file


def printed(result: Result) -> list[dict[str, Any]]:
    return [document.raw for document in read_documents(result.stdout, source="stdout")]


@pytest.mark.parametrize("file", SAMPLES, ids=lambda file: file.stem)
def test_what_is_printed_is_valid(file: Path) -> None:
    result = convert(file)
    assert result.exit_code == 0
    given = [i.raw for d in read_documents(file.read_text(), source="") for i in list_items(d.raw)]
    made = printed(result)
    assert [raw["kind"] for raw in made] == [
        "TrainJob" if is_convertible(raw) else raw["kind"] for raw in given
    ]
    for raw in made:
        if raw["kind"] == "TrainJob":
            parse(raw)
    validated = CliRunner().invoke(main, ["validate", "-"], input=result.stdout)
    assert validated.exit_code == 0


def test_the_whole_of_a_small_one(tmp_path: Path) -> None:
    claim = {
        "container": {"volumeMounts": [{"name": "out", "mountPath": "/out"}]},
        "pod": {"volumes": [{"name": "out", "persistentVolumeClaim": {"claimName": "training"}}]},
    }
    tfjob = build_tfjob({"Worker": build_replicas(2, **claim)}, runPolicy={"backoffLimit": 2})
    file = write(tmp_path, tfjob)
    result = convert(file)
    assert result.stdout == (
        """\
---
# Converted from TFJob scans. Not carried over unchanged:
#   spec.tfReplicaSpecs.Worker.template.spec.containers[0].volumeMounts[0]: becomes spec.output: the claim \
training at /out, which all training replicas mount; checkpoints and logs go to a folder with the job's name
#   spec.tfReplicaSpecs.Worker.restartPolicy: a failure restarts the training of all replicas from the last \
checkpoint, at most spec.maxRestarts times
apiVersion: trainjob.dev/v1alpha1
kind: TrainJob
metadata:
  name: scans
spec:
  worker:
    replicas: 2
  evaluator:
    replicas: 0
  output:
    claim:
      claimName: training
    mountPath: /out
  maxRestarts: 2
  template:
    spec:
      containers:
      - name: trainer
        image: "example.com/scans:1"
        command:
        - python
        - train.py
"""
    )


def test_each_note_is_a_line_with_file_line_and_field(tmp_path: Path) -> None:
    file = tmp_path / "tfjob.yaml"
    file.write_text(
        """\
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: scans}
spec:
  runPolicy:
    cleanPodPolicy: None
  tfReplicaSpecs:
    Worker:
      restartPolicy: Always
      template: {spec: {containers: [{name: tensorflow, image: x}]}}
"""
    )
    result = convert(file, "--claim", "training")
    lines = result.stderr.splitlines()
    assert [line.split(": ", 1)[0] for line in lines] == [
        f"{file}:6 spec.runPolicy.cleanPodPolicy",
        f"{file}:9 spec.tfReplicaSpecs.Worker.restartPolicy",
        f"{file}:10 spec.tfReplicaSpecs.Worker.template.spec.containers[0].command",
    ]
    assert printed(result)[0]["spec"]["output"] == {"claim": {"claimName": "training"}}


def test_items_of_a_list_are_distinguished(tmp_path: Path) -> None:
    jobs = {"apiVersion": "v1", "kind": "List", "items": [CONFIG_MAP, build_tfjob()]}
    file = write(tmp_path, jobs)
    result = convert(file)
    assert [raw["kind"] for raw in printed(result)] == ["ConfigMap", "TrainJob"]
    assert "items[1].spec.tfReplicaSpecs.Worker.restartPolicy: " in result.stderr


def test_a_tfjoblist_as_the_api_server_answers_it(tmp_path: Path) -> None:
    job = {key: value for key, value in build_tfjob().items() if key not in ("apiVersion", "kind")}
    jobs = {"apiVersion": "kubeflow.org/v1", "kind": "TFJobList", "items": [job]}
    assert [raw["kind"] for raw in printed(convert(write(tmp_path, jobs)))] == ["TrainJob"]


@pytest.mark.parametrize("items", [[], [1], None])
def test_a_list_of_no_objects_is_another_object(items: Any, tmp_path: Path) -> None:
    odd = {"apiVersion": "v1", "kind": "List", "items": items}
    assert printed(convert(write(tmp_path, odd, build_tfjob())))[0] == odd


def test_other_objects_are_printed_as_they_are(tmp_path: Path) -> None:
    other = {**CONFIG_MAP, "data": {"on": "off", "script": "set -e\nexec true\n", "n": "012"}}
    file = write(tmp_path, other, build_tfjob())
    result = convert(file)
    assert printed(result)[0] == other
    assert yaml.safe_load(result.stdout.split("---\n")[1]) == other
    assert (
        f"{file}:1 ConfigMap settings: not a TFJob or MPIJob of kubeflow.org, printed as it is"
        in result.stderr.splitlines()
    )


INSIDE: dict[str, dict[str, Any]] = {
    "workflow": {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"generateName": "train-"},
        "spec": {"templates": [{"name": "a", "resource": {"manifest": json.dumps(build_tfjob(), indent=1)}}]},
    },
    "experiment": {
        "apiVersion": "kubeflow.org/v1beta1",
        "kind": "Experiment",
        "metadata": {"name": "search"},
        "spec": {"trialTemplate": {"trialSpec": build_tfjob()}},
    },
    "config map": {**CONFIG_MAP, "data": {"job.yaml": "apiVersion: kubeflow.org/v1\nkind: MPIJob\n"}},
    "service": {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "board"},
        "spec": {"selector": {"training.kubeflow.org/job-name": "scans"}},
    },
    "another job": {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "p"},
        "spec": {},
    },
}


@pytest.mark.parametrize("raw", INSIDE.values(), ids=INSIDE)
def test_what_has_a_job_inside_is_named(raw: dict[str, Any], tmp_path: Path, golden: Golden) -> None:
    alone = convert(write(tmp_path, raw))
    assert (alone.exit_code, alone.stdout) == (1, "")
    line = alone.stderr.splitlines()[0]
    golden(line)
    beside = convert(write(tmp_path, raw, build_tfjob()))
    assert [each["kind"] for each in printed(beside)] == [raw["kind"], "TrainJob"]
    assert f"{line}, printed as it is" in beside.stderr


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: kubeflow.org/v1\nkind: TFJob\n{{- if .Values.on }}\nmetadata: {name: a}\n{{- end }}\n",
        "apiVersion: kubeflow.org/v1\nkind: TFJob\nmetadata:\n  name: {{ .Release.Name }}\n",
        'apiVersion: kubeflow.org/v1\nkind: TFJob\nmetadata:\n  name: "{{ .Values.name }}"\n',
    ],
)
def test_a_template_of_helm_is_named(text: str, tmp_path: Path) -> None:
    file = tmp_path / "tfjob.yaml"
    file.write_text(text)
    result = convert(file)
    assert (result.exit_code, result.stdout) == (1, "")
    assert re.search(r"tfjob.yaml:[34] is a template, such as Helm's, and not a manifest", result.stderr)


def test_standard_input_and_several_files(tmp_path: Path) -> None:
    file = write(tmp_path, build_tfjob(metadata={"name": "one"}))
    result = convert(file, "-", stdin=json.dumps(build_tfjob(metadata={"name": "two"})))
    assert [raw["metadata"]["name"] for raw in printed(result)] == ["one", "two"]
    assert "\nstdin:1 " in result.stderr


REFUSED = build_tfjob(metadata={"name": "scans.north"}, runPolicy={"suspend": "no"})


def test_a_job_that_would_be_refused_prints_nothing(tmp_path: Path) -> None:
    file = write(tmp_path, build_tfjob(), REFUSED)
    result = convert(file)
    assert (result.exit_code, result.stdout) == (1, "")
    *_, heading, one, other = result.stderr.splitlines()
    first, second = sorted([one, other])
    assert "TFJob scans.north can't be converted into a valid TrainJob" in heading
    assert heading.endswith("--force:")
    assert " metadata.name: must start with a lowercase letter" in first
    assert " spec.runPolicy.suspend: must be true or false" in second


def test_it_can_be_forced(tmp_path: Path) -> None:
    result = convert(write(tmp_path, build_tfjob(), REFUSED), "--force")
    assert result.exit_code == 1
    assert [raw["metadata"]["name"] for raw in printed(result)] == ["scans", "scans.north"]
    assert printed(result)[1]["spec"]["suspend"] == "no"


def test_a_name_can_not_break_out_of_its_comment(tmp_path: Path) -> None:
    for name in ("a\nkind: Pod", "a\u2028kind: Pod", "a\rkind: Pod"):
        tfjob = build_tfjob(metadata={"name": name, "labels": {"kueue.x-k8s.io/\n---\n": "x"}})
        made = printed(convert(write(tmp_path, tfjob), "--force"))
        assert [raw["kind"] for raw in made] == ["TrainJob"]
        assert made[0]["metadata"]["name"] == name


@pytest.mark.parametrize("content", [CONFIG_MAP, {**build_tfjob(), "apiVersion": "example.com/v1"}])
def test_a_file_without_a_tfjob(content: dict[str, Any], tmp_path: Path) -> None:
    result = convert(write(tmp_path, content))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "not a TFJob or MPIJob of kubeflow.org" in result.stderr


@pytest.mark.parametrize(("text", "code"), [("a: [", 1), ("", 1), (None, 2)])
def test_a_file_that_can_not_be_read(text: str | None, code: int, tmp_path: Path) -> None:
    good, bad = write(tmp_path, build_tfjob()), tmp_path / "bad.yaml"
    if text is not None:
        bad.write_text(text)
    result = convert(good, bad)
    assert (result.exit_code, result.stdout) == (code, "")
    assert str(bad) in result.stderr.splitlines()[-1]


def test_it_imports_no_more_than_it_needs(tmp_path: Path) -> None:
    code = """
import sys
from trainjob.cli import main
try:
    main(["convert", sys.argv[1]])
except SystemExit as end:
    assert end.code == 0
heavy = {"kopf", "kubernetes", "aiohttp", "rich", "jinja2", "asyncio", "trainjob.core"}
print("imported:", sorted(heavy & set(sys.modules)))
"""
    command = [sys.executable, "-c", code, str(write(tmp_path, build_tfjob()))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.endswith("imported: []\n")
