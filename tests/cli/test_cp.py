"""`trainjob cp` and `trainjob tensorboard`, from a cluster and from runs here."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from testbed.waiting import until

from support.cli.outputs import FILES, store_job_with_output, store_run_with_output, write_output
from support.cli.program import GUARD_SECONDS, build_run, command, running
from support.cli.requests import Answer, Asked, Break
from support.cli.server import CliServer
from support.cli.stored_jobs import call, let_time_pass, store_run, stored_job
from support.golden import Golden
from trainjob.cli import cp, tensorboard
from trainjob.client.output import Copied

MODEL_SIZE = len(FILES["model/model.keras"]) + len(FILES["model/recipe.json"])


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cp, "_SECONDS_BETWEEN_LINES", 0.0)


def in_cluster(api: CliServer, folder: Path) -> None:
    store_job_with_output(api, write_output(folder / "there"))


def here(_: CliServer, folder: Path) -> None:
    store_run_with_output(folder / "runs" / "digits")


PLACES = pytest.mark.parametrize("place", [in_cluster, here])


@PLACES
def test_files_are_copied_with_their_progress(
    place: Callable[[CliServer, Path], None], api: CliServer, tmp_path: Path
) -> None:
    place(api, tmp_path)
    result = call("cp", "digits:model", "new/model")
    assert (result.exit_code, result.stdout) == (0, "new/model: 2 files, 70 kB\n")
    assert result.stderr.splitlines()[-1] == "trainjob: 2 of 2 files, 70 kB of 70 kB"
    assert {path.name for path in Path("new/model").iterdir()} == {"model.keras", "recipe.json"}
    assert call("cp", "digits:/model/model.keras", "./x").exit_code == 1
    assert call("cp", "digits:model/model.keras", "weights.keras").exit_code == 0
    assert Path("weights.keras").read_bytes() == FILES["model/model.keras"]
    assert call("cp", "digits:model/recipe.json", ".").stdout.startswith("recipe.json: 1 file")
    assert call("cp", "digits:", "all").exit_code == 0
    assert call("cp", "digits:", "new").stdout.startswith("new/digits: ")
    assert {name for name in FILES if not Path("all", name).is_file()} == set()


@PLACES
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["digits:modle", "new"], 1),
        (["digits:../other", "new"], 1),
        (["digits:model", "file"], 1),
        (["digits:model", "file/new"], 1),
        (["digits", "new"], 2),
        (["nothing:model", "new"], 3),
    ],
)
def test_what_can_not_be_copied(
    place: Callable[[CliServer, Path], None],
    words: list[str],
    code: int,
    api: CliServer,
    tmp_path: Path,
    golden: Golden,
) -> None:
    place(api, tmp_path)
    Path("file").touch()
    before = sorted(path.name for path in tmp_path.iterdir())
    result = call("cp", *words)
    assert (result.exit_code, result.stdout) == (code, "")
    golden(result.stderr.splitlines()[-1])
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert api.count("create", "pods") == api.count("delete", "pods")


def test_a_link_that_is_left_out_is_told(api: CliServer, tmp_path: Path) -> None:
    in_cluster(api, tmp_path)
    (tmp_path / "there/model/passwords").symlink_to("/etc/passwd")
    assert (
        "left out: model/passwords (not a regular file, or a link" in call("cp", "digits:model", "new").stderr
    )


def test_what_a_pod_says_is_printed_as_text(api: CliServer, tmp_path: Path) -> None:
    in_cluster(api, tmp_path)
    (tmp_path / "there/model/\x1b]0;title\x07\nstate: Complete").symlink_to("/etc/passwd")
    copied = call("cp", "digits:model", "new")
    assert "left out: 'model/\\x1b]0;title\\x07\\nstate: Complete (not a regular file," in copied.stderr
    assert "it has 'model/\\x1b]0;" in call("cp", "digits:model/none", "other").stderr

    def refuse(asked: Asked) -> None:
        if (asked.verb, asked.plural) == ("create", "pods"):
            raise Answer(500, "InternalError", "a \x1b]0;title\x07webhook\u202e")

    api.rules.append(refuse)
    refused = call("cp", "digits:model", "other")
    assert refused.exit_code == 4
    assert refused.stderr.endswith(" a webhook\n")


def test_the_time_is_limited(
    api: CliServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    in_cluster(api, tmp_path)
    api.pod_status = {"phase": "Pending"}
    let_time_pass(5400, lambda: api.count("create", "pods") == 1, monkeypatch)
    result = call("cp", "digits:model", "new", "--timeout", "1h30m")
    assert result.exit_code == 124
    golden(result.stderr)
    assert api.count("delete", "pods") == 1


def test_a_copy_that_is_interrupted_leaves_no_pod_and_no_file(api: CliServer, tmp_path: Path) -> None:
    in_cluster(api, tmp_path)

    def never_end(_: object) -> object:
        copying.process.send_signal(signal.SIGHUP)  # its terminal is closed
        copying.process.wait(GUARD_SECONDS)
        raise Break

    api.program = never_end  # type: ignore[assignment]
    before = {path.name for path in tmp_path.iterdir()}
    with running("cp", "digits:model", "new", cwd=tmp_path) as copying:
        assert copying.finish() == 130, copying.lines
    assert copying.lines == []
    assert {path.name for path in tmp_path.iterdir()} == before
    assert api.count("delete", "pods") == 1


def test_progress_is_in_words() -> None:
    assert cp.describe_progress(Copied(3, 1_500_000), Copied(12, 20_000_000)) == (
        "3 of 12 files, 1.5 MB of 20 MB"
    )


# TensorBoard.


BOARD = """\
import pathlib, sys, time
folder = pathlib.Path(sys.argv[sys.argv.index("--logdir") + 1])
print("board", *sys.argv[3:], flush=True)
def grown():
    return [p for p in folder.rglob("evaluator/logs/events*") if p.stat().st_size > 6]
while not grown():
    time.sleep(0.02)
print(sorted(str(p.relative_to(folder)) for p in folder.rglob("events*")), flush=True)
"""


def test_a_clusters_job_is_kept_up_to_date_until_it_is_over(
    api: CliServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    sent = store_job_with_output(api, write_output(tmp_path / "there"), "Running")
    monkeypatch.setattr(tensorboard, "find_tensorboard", lambda: [sys.executable, "-c", BOARD])
    monkeypatch.setattr(tensorboard, "_REFRESH_SECONDS", 0.1)
    requests: list[str] = []

    def grow(command: list[str]) -> object:
        requests.append(command[6])
        if len(requests) == 3:
            with (tmp_path / "there/evaluator/logs/events.out.tfevents.1.host").open("ab") as file:
                file.write(b" of step 80")
            api.put(stored_job("Complete", startTime="2026-01-02T03:04:05Z"))
        return sent(command)

    api.program = grow  # type: ignore[assignment]
    result = call("tensorboard", "digits", "--port", "6123")
    printed = capfd.readouterr().out
    assert result.exit_code == 0, result.stderr
    assert printed.splitlines() == [
        "board --host 127.0.0.1 --port 6123",
        "['evaluator/logs/events.out.tfevents.1.host', 'logs/train/events.out.tfevents.1.host']",
    ]
    assert json.loads(requests[1])["sizes"]["evaluator/logs/events.out.tfevents.1.host"] == 6
    assert (api.count("create", "pods"), api.count("delete", "pods")) == (1, 1)


def test_a_job_that_is_not_there_starts_nothing(
    api: CliServer, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    monkeypatch.setattr(tensorboard, "find_tensorboard", lambda: [sys.executable, "-c", "1/0"])
    assert call("tensorboard", "digits", "-n", "default").exit_code == 3
    assert call("tensorboard", "-n", "default").exit_code == 2
    result = call("tensorboard")
    assert result.exit_code == 1
    api.put(stored_job("Pending"))
    golden(result.stderr, call("tensorboard", "digits").stderr)


def test_without_tensorboard_its_package_is_named(
    api: CliServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    in_cluster(api, tmp_path)
    monkeypatch.setattr(tensorboard, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    result = call("tensorboard", "digits")
    assert result.exit_code == 1
    golden(result.stderr)
    assert api.count("create", "pods") == 0


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    links = tmp_path / "links"
    links.mkdir()
    runs = [store_run(tmp_path / name / "digits", build_run()) for name in ("one", "two")]
    for _ in range(2):
        tensorboard.link_runs(links, reversed([tensorboard.Run(folder, None) for folder in runs]))  # type: ignore[arg-type]
    assert {link.name: link.readlink() for link in links.iterdir()} == {
        "digits": runs[0],
        "digits (2)": runs[1],
    }


def shown(address: str) -> dict[str, list[str]]:
    """The curves of each run."""
    url = f"{address}data/plugin/scalars/tags"
    with urllib.request.urlopen(url, timeout=GUARD_SECONDS) as answer:  # noqa: S310 - TensorBoard's
        return {run: list(tags) for run, tags in json.load(answer).items()}


def test_the_real_tensorboard_shows_all_runs_here(tmp_path: Path) -> None:
    for name in ("digits", "other"):
        store_run_with_output(tmp_path / "runs" / name)
    (tmp_path / "tensorflow.py").write_text("raise ImportError")  # it starts much faster without
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(
        command(["tensorboard"]), cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True
    ) as showing:
        try:
            assert showing.stderr is not None
            address = next(word for line in showing.stderr for word in line.split() if "http://" in word)
            assert address.startswith("http://127.0.0.1:")
            curves = {"digits/logs/train": ["loss"], "other/logs/train": ["loss"]}
            until(lambda: shown(address) == curves, what="both runs", seconds=GUARD_SECONDS)
        finally:
            showing.send_signal(signal.SIGTERM)
        assert showing.wait(GUARD_SECONDS) == 130
