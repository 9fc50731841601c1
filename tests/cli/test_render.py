import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from support.world.jobs import build_job
from trainjob.api import parse
from trainjob.cli import main
from trainjob.cli.documents import dump_stream
from trainjob.cluster.agents.bundle import preview_source
from trainjob.core.manifests import build_objects


def _render(folder: Path, *jobs: dict[str, Any], arguments: tuple[str, ...] = ()) -> Result:
    file = folder / "job.yaml"
    # JSON, which leaves no doubt about what is text.
    file.write_text("\n---\n".join(json.dumps(job) for job in jobs))
    return CliRunner().invoke(main, ["render", str(file), *arguments])


def test_the_objects_are_exactly_those_of_the_core(tmp_path: Path) -> None:
    job = build_job()
    result = _render(tmp_path, job)
    assert result.exit_code == 0
    objects = list(yaml.safe_load_all(result.stdout))
    parsed = parse(job)
    assert objects == build_objects(parsed, preview_source(parsed.metadata))
    assert [made["kind"] for made in objects] == ["Service", "Pod", "Pod", "Pod"]


TEXTS = [
    "{{ 7*7 }}", "a: b\n- c", "quote \" and ' and \\", "emoji \U0001f600 grün", "x" * 300, " lead", "trail ",
    "", "#no", "- a", "on", "No", "y", "null", "~", "true", "1e3", "0o7", "0x1f", "1_000", "12:30:45",
    "2026-01-02", ".inf", "NaN", "=", "<<", "*a", "&a", "!t", "%d", "@x", "`x`", "|", ">", "tab\there",
    "bell\x07", "nel\x85 ls\u2028", "[a]", "{a}", "a, b", "key: value", "---", "...",
]  # fmt: skip


def test_text_comes_out_unchanged(tmp_path: Path) -> None:
    env = [{"name": f"TEXT_{number}", "value": text} for number, text in enumerate(TEXTS)]
    result = _render(tmp_path, build_job(container={"args": TEXTS, "env": env}))
    pod = next(made for made in yaml.safe_load_all(result.stdout) if made["kind"] == "Pod")
    container = pod["spec"]["containers"][0]
    assert container["args"] == TEXTS
    assert [each for each in container["env"] if each["name"].startswith("TEXT_")] == env


@pytest.mark.parametrize("text", ["on", "1e3", "0o7", "12:30:45", "null", "1_000", "=", "y"])
def test_what_some_readers_take_for_something_else_is_quoted(text: str) -> None:
    assert dump_stream([{"value": text}]) == f'---\nvalue: "{text}"\n'


def test_no_aliases_and_the_order_of_the_fields() -> None:
    shared = {"b": 1, "a": 2}
    assert (
        dump_stream([{"one": shared, "two": shared}]) == "---\none:\n  b: 1\n  a: 2\ntwo:\n  b: 1\n  a: 2\n"
    )


@pytest.mark.parametrize("task", ["worker/1", "worker-1"])
def test_one_tf_config(task: str, tmp_path: Path) -> None:
    result = _render(tmp_path, build_job(), arguments=("--task", task))
    assert result.exit_code == 0
    config = json.loads(result.stdout)
    assert config["task"] == {"type": "worker", "index": 1}
    assert config["cluster"]["worker"][0] == "digits-worker-0.digits.default.svc:2222"


@pytest.mark.parametrize("task", ["worker/2", "chief/0", "worker", "", "/", "worker/-1"])
def test_a_task_that_is_not_there(task: str, tmp_path: Path) -> None:
    result = _render(tmp_path, build_job(), arguments=("--task", task))
    assert result.exit_code == 2
    assert "it has worker/0, worker/1, evaluator/0" in result.stderr


def test_several_jobs(tmp_path: Path) -> None:
    jobs = (build_job(name="one"), build_job(name="two"))
    assert len(list(yaml.safe_load_all(_render(tmp_path, *jobs).stdout))) == 8
    two = _render(tmp_path, *jobs, arguments=("--name", "two", "--task", "worker/0"))
    assert "two-worker-0.two" in two.stdout
    unnamed = _render(tmp_path, *jobs, arguments=("--task", "worker/0"))
    assert unnamed.exit_code == 2
    assert "choose one by --name: one, two" in unnamed.stderr
    other = _render(tmp_path, *jobs, arguments=("--name", "three"))
    assert other.exit_code == 2
    assert "holds no TrainJob 'three', but one, two" in other.stderr


def test_mistakes_are_reported_as_validate_does(tmp_path: Path) -> None:
    result = _render(tmp_path, build_job(workers=0))
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "spec.worker.replicas: must be at least 1, got 0" in result.stderr
