"""What differs between runs and jobs: their requests, their figures, and a picture of their curves."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from support.cli.outputs import FILES, store_job_with_output, write_output
from support.cli.program import NOW, build_replica, build_run, condition
from support.cli.requests import Answer, Asked
from support.cli.server import CliServer
from support.cli.stored_jobs import call, store_run, stored_job
from support.golden import Golden
from support.world.jobs import build_job
from trainjob.cli.compare import Compared, build_table
from trainjob.client.drawing import draw_charts
from trainjob.client.history import History
from trainjob.client.request import Request, read_request
from trainjob.client.view import JobView, read_job

SVG = "{http://www.w3.org/2000/svg}"
EPOCHS = {1: 0.9, 2: 0.4, 3: 0.5}
COMPLETE = {"state": "Complete", "conditions": [condition("Complete", "TrainingFinished", "has finished")]}


def asked(*arguments: str, **variables: str) -> Request:
    env = [{"name": name, "value": value} for name, value in variables.items()]
    return read_request(build_job(container={"args": [*arguments], "env": env}), {})


def store(folder: Path, request: Request, losses: list[float], view: JobView | None = None) -> None:
    lines = [
        f'{{"step": {23 * number}, "metrics": {{"loss": {loss}, "val_loss": {loss + 0.25}, "lr": 0.1}}}}\n'
        for number, loss in enumerate(losses, start=1)
    ]
    steps = 23 * len(losses)
    done = view or build_run(
        [build_replica("worker-0", "finished", step=steps, total_steps=steps)], **COMPLETE
    )
    store_run(write_output(folder, {"logs/history.jsonl": "".join(lines).encode()}), done, request=request)


def store_two(folder: Path) -> None:
    store(folder / "digits.1", asked("--epochs", "3", RATE="0.1"), [0.9, 0.5, 0.25])
    spent = {"starting": 3, "training": 65, "since": "2026-01-02T03:04:05Z"}
    failed = build_run(
        [build_replica("worker-0", "failed (1)", step=46, total_steps=46)],
        state="Failed",
        message="worker 0 crashed",
        stateSeconds=spent,
        restarts={"counted": 3},
    )
    store(folder / "digits", asked("--epochs", "2", RATE="0.2", TRAIN_SEED="8"), [0.75, 0.875], failed)


def test_two_runs(tmp_path: Path, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store_two(tmp_path)
    result = call("compare", "digits.1", "digits", "--picture", "curves.svg")
    assert (result.exit_code, result.stderr) == (0, "")
    golden(result.stdout)
    assert (tmp_path / "curves.svg").read_text().count("<polyline") == 6
    again = call("compare", str(tmp_path / "digits"), "digits").stdout
    assert "  differs in    nothing: the same request\n" in again
    three = call("compare", "digits.1", "digits", "digits.1").stdout.splitlines()
    assert three[-1].split() == ["lr", "0.1", "0.1", "0.1"]


def test_one_run_is_shown_with_its_own_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store_two(tmp_path)
    shown = "train.py --epochs 2 TRAIN_SEED=8"
    assert f"  request       {shown}\n  environment   RATE\n" in call("get", "digits").stdout
    assert f"   {shown}   " in call("list").stdout


def figures(curves: History, **fields: Any) -> tuple[JobView, History]:
    return build_run([build_replica(step=3, total_steps=9)], **fields), curves


@pytest.mark.parametrize(
    ("runs", "rows"),
    [
        # Which value is the best depends on the metric; of some it isn't known.
        (
            [figures({"loss": EPOCHS, "accuracy": EPOCHS, "lr": {1: 0.5, 3: 0.25}})],
            {"loss": ["0.5"], "  best": ["0.4 at 2", "90.0 % at 1"], "accuracy": ["50.0 %"], "lr": ["0.25"]},
        ),
        (
            [figures({"loss": {1: 0.5, 2: math.nan}}), figures({"val_loss": {4: 2.0}})],
            {"loss": ["nan", ""], "val_loss": ["", "2"], "  best": ["0.5 at 1", "", "", "2 at 4"]},
        ),
        # Without curves the status has the latest values.
        (
            [
                figures({}, progress={"step": 3, "metrics": {"loss": "0.75"}}),
                (read_job(stored_job(evaluation={"step": 2, "metrics": {"loss": "0.5", "auc": "?"}})), {}),
            ],
            {"loss": ["0.75", ""], "val_loss": ["", "0.5"]},
        ),
        (
            [figures({f"metric {number}": {1: float(number)} for number in range(30)})],
            {f"metric {n}": [f"{n}"] for n in range(12)} | {"18 more metrics: see --picture": [""]},
        ),
    ],
)  # fmt: skip
def test_the_figures(runs: list[tuple[JobView, History]], rows: dict[str, list[str]]) -> None:
    table = build_table([Compared("digits", *run) for run in runs], NOW)
    assert [row[0] for row in table[:4]] == ["run", "steps", "time trained", "restarts"]
    found: dict[str, list[str]] = {}
    for name, *cells in table[4:]:
        found.setdefault(name, []).extend(cells)
    assert found == rows


def at(seconds: int) -> str:
    return (NOW + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, ""),
        ({"stateSeconds": {"training": 100, "since": at(0)}}, "1m50s"),
        ({"state": "Complete", "stateSeconds": {"training": 100, "since": at(0)}}, "1m40s"),
        # Its record ends 65 seconds after the start.
        ({"startTime": at(-60), "stateSeconds": {"training": 100, "since": at(0)}}, "1m45s"),
        ({"state": "Restarting", "stateSeconds": {"training": 100, "since": at(0)}}, "1m40s"),
    ],
)  # fmt: skip
def test_the_time_trained(fields: dict[str, Any], expected: str) -> None:
    run = Compared("digits", replace(build_run(**fields), interrupted="startTime" in fields), {})
    assert build_table([run], NOW + timedelta(seconds=10))[2][1] == expected


@pytest.mark.parametrize(
    ("curves", "lines"),
    [
        ([{"loss": EPOCHS}, {"loss": EPOCHS}, {"loss": EPOCHS, "val_loss": {1: 2.0}}], [3, 1]),
        ([{"accuracy": EPOCHS, "loss": EPOCHS}] * 7, [7, 7]),
        ([{"loss": dict.fromkeys(range(5000), 0.5)}, {"lr": {1: 1e-9, 9: 3e-9}}], [1, 1]),
        ([{"x": {1: 0.0}}, {"x": {5: -1e299, 9: 1e299, 11: math.inf, 12: 1.7e308}}], [2]),
        ([{"</svg><script>\x1b[2J": EPOCHS}], [1]),
    ],
)
def test_a_picture_has_a_chart_for_each_metric_and_a_line_for_each_run(
    curves: list[History], lines: list[int]
) -> None:
    label = '<b>&"digits'
    picture = ElementTree.fromstring(draw_charts([(label, each) for each in curves]))  # noqa: S314 - our own
    charts = picture.findall(f"{SVG}g")
    assert [len(chart.findall(f"{SVG}polyline")) for chart in charts] == lines
    assert [text.text for text in picture.findall(f"{SVG}text")] == [label] * len(curves)
    assert picture.find(f".//{SVG}script") is None
    height = float(picture.attrib["height"])
    for chart in charts:
        down = float(chart.attrib["transform"].split(",")[1].rstrip(")"))
        for line in chart.findall(f"{SVG}polyline"):
            points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
            assert all(0 <= x <= 380 and 0 <= down + y <= height for x, y in points)


def test_without_a_value_there_is_no_picture(tmp_path: Path) -> None:
    assert draw_charts([("a", {"loss": {1: math.nan}}), ("b", {})]) == ""
    store_run(tmp_path / "digits")
    result = call("compare", "digits", "digits", "--picture", str(tmp_path / "a.svg"))
    assert (result.exit_code, "none of these runs has a curve" in result.stderr) == (1, True)
    assert not (tmp_path / "a.svg").exists()


def test_a_run_here_and_a_job_in_a_cluster(api: CliServer, tmp_path: Path) -> None:
    store(tmp_path / "here/mnist", asked(), [0.5])
    store_job_with_output(api, write_output(tmp_path / "there", FILES), restarts={"counted": 2})
    result = call("compare", "mnist", "digits")
    assert (result.exit_code, result.stderr) == (0, "")
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["restarts", "0", "2"] in rows
    assert ["loss", "0.5", "0.5"] in rows
    assert ["val_loss", "0.75", "0.6"] in rows
    assert api.count("create", "pods") == api.count("delete", "pods") == 1


def test_a_job_whose_output_cannot_be_read_has_the_figures_of_its_status(
    api: CliServer, golden: Golden
) -> None:
    def refuse(request: Asked) -> None:
        if request.verb == "create":
            raise Answer(403, "Forbidden", "no pods for you")

    api.rules.append(refuse)
    started = {"startTime": "2026-01-02T03:04:05Z"}
    api.put(stored_job(progress={"step": 3, "metrics": {"loss": "0.75"}}, **started))
    api.put(stored_job("Complete", name="other", curves={"val_loss": "10:0.5 20:0.25 30:0.375"}))
    result = call("compare", "digits", "other", "-n", "default")
    assert (result.exit_code, result.stderr) == (0, "")
    golden(result.stdout)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("digits",), 2),
        (("digits", "digits", "--picture", "curves.png"), 2),
        (("digits", "digits", "--picture", "no/folder/curves.svg"), 2),
        (("digits", "none"), 3),
        (("digits", "none", "--context", "none"), 4),
    ],
)
def test_what_is_wrong(
    arguments: tuple[str, ...], code: int, api: CliServer, tmp_path: Path, golden: Golden
) -> None:
    store(tmp_path / "digits", asked(), [0.5])
    result = call("compare", *arguments)
    assert result.exit_code == code, result.output
    golden(result.stderr.splitlines()[-1])
