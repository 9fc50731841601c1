"""The Grafana dashboards of the controller and of the jobs, built with Grafana's own SDK.

Every replica of the controller shows all jobs: figures of jobs are the maximum over the replicas. Histograms
of jobs have few events: their quantiles are over an hour.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.variants import Dataquery
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.common import DataSourceRef
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DataTransformerConfig,
    DynamicConfigValue,
    Panel,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

# What the dashboards show.


@dataclass(frozen=True)
class Chart:
    """One panel.

    Attributes:
        title: unique on its dashboard.
        meaning: what it shows, and when to look closer.
        unit: Grafana's name of the unit.
        queries: expressions in PromQL by the legend of their series; of a table, by the column's title.
        is_number: it shows the latest values only.
    """

    title: str
    meaning: str
    unit: str
    queries: Mapping[str, str]
    is_number: bool = False


def _quantiles(metric: str, window: str, by: str = "") -> dict[str, str]:
    """Return the median and the 99th percentile of a histogram."""
    rate = f"sum by (le{by and f', {by}'}) (rate({metric}_bucket{{{_JOB}}}[{window}]))"
    legend = f" {{{{{by}}}}}" if by else ""
    return {f"p{q}{legend}": f"histogram_quantile({q / 100}, {rate})" for q in (50, 99)}


_JOB = 'job=~"$job"'
_OF = 'namespace=~"$namespace", name=~"$name"'
_RATE = "$__rate_interval"

CONTROLLER: Mapping[str, tuple[Chart, ...]] = {
    "Overview": (
        Chart("Leaders", "Replicas at work: 1. Without one, nothing is started or restarted.", units.Short,
              {"": f"sum(trainjob_leader{{{_JOB}}})"}, is_number=True),
        Chart("Replicas by version", "Replicas of the controller; two versions only during an upgrade.",
              units.Short, {"{{version}}": f"count by (version) (trainjob_build_info{{{_JOB}}})"},
              is_number=True),
        Chart("Running jobs", "Jobs whose training runs.", units.Short,
              {"": f'max(trainjob_jobs{{{_JOB}, state="Running"}})'}, is_number=True),
        Chart("Jobs by state", "As `kubectl get tj` shows it.", units.Short,
              {"{{state}}": f"max by (state) (trainjob_jobs{{{_JOB}}})"}),
        Chart("Jobs that finished", "In the last hour, by how they ended.", units.Short,
              {"{{state}}": f"sum by (state) (increase(trainjob_jobs_finished_total{{{_JOB}}}[1h]))"}),
        Chart("Restarts", "In the last hour, by their cause.", units.Short,
              {"after {{after}}":
               f"sum by (after) (increase(trainjob_restart_seconds_count{{{_JOB}}}[1h]))"}),
    ),
    "Waiting times of jobs": (
        Chart("Wait for admission", "From a job's creation until it was started: held by a queue or a "
              "person, or waiting for the controller. Jobs of the last hour.", units.Seconds,
              _quantiles("trainjob_admission_seconds", "1h")),
        Chart("Time to the first step", "From a job's start to its first step: scheduling, images, imports "
              "and tracing. Jobs of the last hour.", units.Seconds,
              _quantiles("trainjob_first_step_seconds", "1h")),
        Chart("Length of restarts", "From the end of training until all replicas train again, by cause. "
              "Restarts of the last hour.", units.Seconds,
              _quantiles("trainjob_restart_seconds", "1h", by="after")),
    ),
    "Work": (
        Chart("Queue", "Jobs that wait for a worker. A queue that doesn't empty: see the next panels.",
              units.Short, {"{{instance}}": f"max by (instance) (trainjob_queue_depth{{{_JOB}}})"}),
        Chart("Wait for a worker", "Time in that queue.", units.Seconds,
              _quantiles("trainjob_queue_seconds", _RATE)),
        Chart("Passes", "Passes over one job, a second.", units.OpsPerSecond,
              {"": f"sum(rate(trainjob_reconcile_seconds_count{{{_JOB}}}[{_RATE}]))"}),
        Chart("Length of a pass", "One pass over one job, its writes included.", units.Seconds,
              _quantiles("trainjob_reconcile_seconds", _RATE)),
    ),
    "API server and agents": (
        Chart("Requests by code", "404 and 409 are part of normal work; 0 is no response.",
              units.RequestsPerSecond,
              {"{{code}}": f"sum by (code) (rate(trainjob_api_requests_total{{{_JOB}}}[{_RATE}]))"}),
        Chart("Requests by kind", "What they are about.", units.RequestsPerSecond,
              {"{{verb}} {{resource}}":
               f"sum by (verb, resource) (rate(trainjob_api_requests_total{{{_JOB}}}[{_RATE}]))"}),
        Chart("Watches that ended early", "Of the last 15 minutes. If many: a proxy ends connections.",
              units.Short, {"{{resource}}":
               f"sum by (resource) (increase(trainjob_watch_restarts_total{{{_JOB}}}[15m]))"}),
        Chart("Calls to agents", "Refused ones have another key, unreachable ones a network in between.",
              units.RequestsPerSecond,
              {"{{outcome}}": f"sum by (outcome) (rate(trainjob_agent_calls_total{{{_JOB}}}[{_RATE}]))"}),
        Chart("Length of a call to an agent", "Of those that were answered.", units.Seconds,
              _quantiles("trainjob_agent_call_seconds", _RATE)),
    ),
    "Process": (
        Chart("Memory", "Resident, of each replica; the chart's limit is `resources.limits.memory`.",
              units.BytesIEC, {"{{instance}}": f"process_resident_memory_bytes{{{_JOB}}}"}),
        Chart("Processors", "Processors in use, of each replica.", units.Short,
              {"{{instance}}": f"rate(process_cpu_seconds_total{{{_JOB}}}[{_RATE}])"}),
        Chart("Open files", "Connections included.", units.Short,
              {"{{instance}}": f"process_open_fds{{{_JOB}}}"}),
    ),
}  # fmt: skip
"""By row."""


def _of_job(metric: str, by: str = "") -> str:
    return f"max by (namespace, name{by and f', {by}'}) ({metric}{{{_OF}}})"


_NAMED = "{{namespace}}/{{name}}"
_UNFINISHED = "and on (namespace, name) trainjob_job_state_seconds"
_RESTARTS = f"sum by (namespace, name) ({_of_job('trainjob_job_restarts', 'kind')})"

TABLE = Chart(
    "Unfinished jobs",
    "One line each: the state and how long it has lasted, progress, restarts, age of the checkpoint.",
    units.Short,
    {
        "In this state": _of_job("trainjob_job_state_seconds", "state"),
        "Step": f"{_of_job('trainjob_job_step')} {_UNFINISHED}",
        "Examples/s": f"{_of_job('trainjob_job_examples_per_second')} {_UNFINISHED}",
        "Restarts": f"{_RESTARTS} {_UNFINISHED}",
        "Checkpoint's age": _of_job("trainjob_job_checkpoint_age_seconds"),
        "Waited for admission": _of_job("trainjob_job_queue_seconds"),
        "Time to first step": _of_job("trainjob_job_first_step_seconds"),
    },
)
_DURATIONS = ("In this state", "Checkpoint's age", "Waited for admission", "Time to first step")

JOBS: Mapping[str, tuple[Chart, ...]] = {
    "Training": (
        Chart("Steps", "Steps done. A line that falls: training went back to a checkpoint.", units.Short,
              {_NAMED: _of_job("trainjob_job_step")}),
        Chart("Speed", "Examples a second, of all workers together.", units.Short,
              {_NAMED: _of_job("trainjob_job_examples_per_second")}),
        Chart("Stragglers", "Replicas that all others wait for in every step.", units.Short,
              {_NAMED: _of_job("trainjob_job_stragglers")}),
    ),
    "Losses": (
        Chart("Restarts of a job", "All kinds together; steps up are restarts.", units.Short,
              {_NAMED: _RESTARTS}),
        Chart("Age of the newest checkpoint", "What a failure would cost now. Before the first checkpoint: "
              "since the start.", units.Seconds,
              {_NAMED: _of_job("trainjob_job_checkpoint_age_seconds")}),
        Chart("Steps lost", "Steps that had to be done again.", units.Short,
              {_NAMED: _of_job("trainjob_job_steps_lost")}),
    ),
    "Time": (
        Chart("Where the time went", "Of all chosen jobs, each up to the latest change of its state.",
              units.Seconds, {"{{on}}": f'sum by (on) ({_of_job("trainjob_job_spent_seconds", "on")})'}),
        Chart("Waited for admission", "From creation to start; it grows until then.", units.Seconds,
              {_NAMED: _of_job("trainjob_job_queue_seconds")}),
        Chart("Time to first step", "From the start to the first step.", units.Seconds,
              {_NAMED: _of_job("trainjob_job_first_step_seconds")}),
    ),
}  # fmt: skip
"""By row, below the table."""


# How they are built.


_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")


def controller_text() -> str:
    """Return the dashboard of the controller, as JSON."""
    board = _board("trainjob-controller", "TrainJob / Controller").with_variable(
        _variable("job", "Controller", "label_values(trainjob_leader, job)")
    )
    return _text(_with_rows(board, CONTROLLER))


def jobs_text() -> str:
    """Return the dashboard of the jobs, as JSON."""
    names = 'label_values(trainjob_job_restarts{namespace=~"$namespace"}, name)'
    board = (
        _board("trainjob-jobs", "TrainJob / Jobs")
        .with_variable(_variable("namespace", "Namespace", "label_values(trainjob_job_restarts, namespace)"))
        .with_variable(_variable("name", "Job", names))
        .with_panel(_table(TABLE))
    )
    return _text(_with_rows(board, JOBS))


def _board(uid: str, title: str) -> dashboard.Dashboard:
    return (
        dashboard.Dashboard(title)
        .uid(uid)
        .tags(["trainjob"])
        .refresh("30s")
        .time("now-6h", "now")
        .timezone("browser")
        .readonly()
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )


def _variable(name: str, label: str, query: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(label)
        .datasource(_SOURCE)
        .query(query)
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(VariableOption(selected=True, text="All", value="$__all"))
    )


def _with_rows(board: dashboard.Dashboard, rows: Mapping[str, tuple[Chart, ...]]) -> dashboard.Dashboard:
    for title, charts in rows.items():
        board.with_row(dashboard.Row(title))
        for chart in charts:
            board.with_panel(_number(chart) if chart.is_number else _graph(chart))
    return board


def _number(chart: Chart) -> Builder[Panel]:
    panel = stat.Panel().title(chart.title).description(chart.meaning).unit(chart.unit).span(8).height(4)
    return panel.datasource(_SOURCE).targets(_targets(chart))


def _graph(chart: Chart) -> Builder[Panel]:
    panel = timeseries.Panel().title(chart.title).description(chart.meaning).unit(chart.unit)
    return panel.min(0).span(8).height(8).datasource(_SOURCE).targets(_targets(chart))


def _targets(chart: Chart) -> list[Builder[Dataquery]]:
    queries = enumerate(chart.queries.items())
    return [
        prometheus.Dataquery().ref_id(_ref(number)).expr(expr).legend_format(legend or chart.title)
        for number, (legend, expr) in queries
    ]


def _table(chart: Chart) -> Builder[Panel]:
    """Return a table with a line for each job, joined from one query for each column."""
    columns = {f"Value #{_ref(number)}": title for number, title in enumerate(chart.queries)}
    order = ["namespace", "name", "state", *columns]
    panel = (
        table.Panel()
        .title(chart.title)
        .description(chart.meaning)
        .span(24)
        .height(9)
        .datasource(_SOURCE)
        .targets(
            [
                prometheus.Dataquery().ref_id(_ref(n)).expr(expr).instant().format(PromQueryFormat.TABLE)
                for n, expr in enumerate(chart.queries.values())
            ]
        )
        .with_transformation(DataTransformerConfig(id_val="merge", options={}))
        .with_transformation(
            DataTransformerConfig(
                id_val="organize",
                options={
                    "excludeByName": {"Time": True},
                    "indexByName": {name: number for number, name in enumerate(order)},
                    "renameByName": {"namespace": "Namespace", "name": "Job", "state": "State", **columns},
                },
            )
        )
    )
    for title in _DURATIONS:
        panel.override_by_name(title, [DynamicConfigValue(id_val="unit", value=units.Seconds)])
    return panel


def _ref(number: int) -> str:
    return chr(ord("A") + number)


def _text(board: dashboard.Dashboard) -> str:
    """Return the dashboard as JSON; panels get numbers, which links to a panel contain."""
    built = json.loads(json.dumps(board.build(), cls=JSONEncoder))
    for number, panel in enumerate(built["panels"], 1):
        panel["id"] = number
    return json.dumps(built, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
