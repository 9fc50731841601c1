import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from support.world.jobs import build_job
from trainjob.cli import main


def _validate(*files: Path | str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(main, ["validate", *map(str, files)], input=stdin)


def _write(folder: Path, *jobs: dict[str, Any] | str, name: str = "job.yaml") -> Path:
    file = folder / name
    file.write_text("---\n".join(job if isinstance(job, str) else yaml.safe_dump(job) for job in jobs))
    return file


GPUS = {"resources": {"limits": {"nvidia.com/gpu": 2}}}


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (build_job(), "valid: 3 pods, 0 GPUs\n"),
        (build_job(workers=1, evaluator=False), "valid: 1 pod, 0 GPUs\n"),
        (build_job(workers=4, container=GPUS), "valid: 5 pods, 8 GPUs\n"),  # the evaluator gets none
    ],
)
def test_a_valid_job(job: dict[str, Any], expected: str, tmp_path: Path) -> None:
    result = _validate(_write(tmp_path, job))
    assert (result.exit_code, result.stdout, result.stderr) == (0, expected, "")


@pytest.mark.parametrize(
    ("prefix", "line"),
    [
        ("digits-", ""),
        ("a" * 38, "metadata.generateName: must have at most 42 characters, so that the names of its pods fit"
         " in 63; got 43 with the 5 that are added"),
        ("Digits-", "metadata.generateName: must start with a lowercase letter"),
    ],
)  # fmt: skip
def test_a_name_may_be_generated(prefix: str, line: str, tmp_path: Path) -> None:
    job = {**build_job(), "metadata": {"generateName": prefix}}
    result = _validate(_write(tmp_path, job))
    assert (result.exit_code, line in result.stderr) == (int(bool(line)), True)
    names = set()
    for _ in range(2):
        rendered = CliRunner().invoke(main, ["render", str(_write(tmp_path, job))])
        names |= {each["metadata"]["name"] for each in yaml.safe_load_all(rendered.stdout) if not line}
    services = [name for name in names if name.startswith(prefix) and len(name) == len(prefix) + 5]
    assert len(services) == (0 if line else 2), "a new name each time"


def test_several_jobs_are_distinguished(tmp_path: Path) -> None:
    result = _validate(_write(tmp_path, build_job(name="one"), build_job(name="two", workers=1)))
    assert result.stdout == "one: valid: 3 pods, 0 GPUs\ntwo: valid: 2 pods, 0 GPUs\n"


def test_standard_input() -> None:
    result = _validate("-", stdin=json.dumps(build_job()))
    assert (result.exit_code, result.stdout) == (0, "valid: 3 pods, 0 GPUs\n")


def test_every_mistake_is_a_line_on_stderr(tmp_path: Path) -> None:
    text = """\
apiVersion: trainjob.dev/v1alpha1
kind: TrainJob
metadata:
  name: digits
spec:
  worker:
    replicas: 0
  maxRestart: 2
  output: {claim: {claimName: training}}
  template: {spec: {containers: [{name: trainer, image: x, command: [python, train.py]}]}}
"""
    file = _write(tmp_path, text)
    result = _validate(file)
    assert result.exit_code == 1
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 2
    assert lines[0] == f"{file}:7 spec.worker.replicas: must be at least 1, got 0"
    assert lines[1].startswith(f"{file}:8 spec.maxRestart: ")


def test_a_template_that_is_too_large_is_reported_with_its_field_and_line(tmp_path: Path) -> None:
    text = yaml.safe_dump(build_job(pod={"affinity": {"podAffinity": ["x" * 100] * 700}}))
    file = _write(tmp_path, text)
    result = _validate(file)
    assert result.exit_code == 1
    line = text.splitlines().index("        podAffinity:") + 1
    assert result.stderr == (
        f"{file}:{line} spec.template.spec.affinity.podAffinity: is 70.4 KiB as JSON; at most"
        " 64 KiB are allowed, since each pod repeats it: keep files in the image, a ConfigMap or a volume\n"
    )


def test_a_mistake_in_the_pod_template_has_its_line(tmp_path: Path) -> None:
    text = yaml.safe_dump(build_job(container={"evn": [], "resources": {"limits": {"memory": "2GB"}}}))
    file = _write(tmp_path, text)
    result = _validate(file)
    lines = [number for number, line in enumerate(text.splitlines(), 1) if "evn:" in line or "2GB" in line]
    assert result.exit_code == 1
    assert [int(line.split(":")[1].split()[0]) for line in result.stderr.splitlines()] == lines


def test_good_and_bad_files_together(tmp_path: Path) -> None:
    good = _write(tmp_path, build_job(), name="good.yaml")
    bad = _write(tmp_path, build_job(workers=0), name="bad.yaml")
    result = _validate(good, bad)
    assert result.exit_code == 1
    assert result.stdout == "digits: valid: 3 pods, 0 GPUs\n"
    assert "bad.yaml" in result.stderr


@pytest.mark.parametrize("text", ["a: [", "\t- x", "just text", "", "[1, 2]", "a: 1\na: 2"])
def test_what_is_no_object(text: str, tmp_path: Path) -> None:
    result = _validate(_write(tmp_path, text))
    assert result.exit_code == 1
    assert result.stderr.startswith(str(tmp_path / "job.yaml"))
    assert isinstance(result.exception, SystemExit)


def test_other_kinds_are_left_out(tmp_path: Path) -> None:
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}}
    file = _write(tmp_path, other, build_job())
    result = _validate(file)
    assert (result.exit_code, result.stdout) == (0, "valid: 3 pods, 0 GPUs\n")
    assert result.stderr == f"{file}:1 ConfigMap settings is skipped: it isn't a TrainJob\n"
    alone = _validate(_write(tmp_path, other))
    assert alone.exit_code == 1
    assert "holds no TrainJob" in alone.stderr


@pytest.mark.parametrize("name", ["missing.yaml", "", "a\0b", "/"])
def test_a_file_that_cannot_be_read(name: str) -> None:
    result = _validate(name)
    assert result.exit_code == 2
    assert "can't be read" in result.stderr


def test_no_file_is_a_usage_error() -> None:
    result = _validate()
    assert result.exit_code == 2
    assert "Missing argument" in result.stderr


def test_it_imports_no_more_than_it_needs(tmp_path: Path) -> None:
    code = """
import sys
from trainjob.cli import main
try:
    main(["validate", sys.argv[1]])
except SystemExit as end:
    assert end.code == 0
heavy = {"tensorflow", "keras", "numpy", "kopf", "kubernetes", "aiohttp", "rich", "jinja2", "asyncio"}
light = ("trainjob_trainer.contract", "trainjob_trainer.errors")
trainer = {one for one in sys.modules if one.startswith("trainjob_trainer.") and not one.startswith(light)}
print(sorted(trainer | heavy & set(sys.modules)))
"""
    command = [sys.executable, "-c", code, str(_write(tmp_path, build_job()))]
    result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout == "valid: 3 pods, 0 GPUs\n[]\n"
