"""A job's status can be written with any report: none is refused for a text or a number in it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.world.jobs import build_job, build_plain_job
from trainjob.api import TrainJobStatus
from trainjob.codegen.crd import object_schema, walk
from trainjob.controller.reconciler import dump_status
from trainjob.core.conditions import truncated
from trainjob.core.names import Replica, pod_labels
from trainjob.core.observed import Snapshot, read_observed
from trainjob.core.plan import plan
from trainjob.core.wording import printable

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
CRD = object_schema()["properties"]["status"]
STATUS = jsonschema.Draft4Validator(CRD)

texts = st.one_of(
    st.sampled_from(
        ["", "a\x1b[31mb", "\x1b]0;title\x07", "\u202eevil", "line\nline", "\ud800", "{", "Crashed"]
    ),
    st.builds(
        lambda part, times: part * times, st.sampled_from(["x", "é", "\x1b[0m", "a b\n"]), st.just(3000)
    ),
    st.text(max_size=20),
)
numbers = st.one_of(
    st.sampled_from([0, 1, -1, 2**31 - 1, 2**31, 2**63 - 1, -(2**63), 10**30]),
    st.sampled_from([0.5, 1.797e308, -1.797e308, float("inf"), float("nan")]),
    st.integers(0, 100),
)
values = st.one_of(
    texts, numbers, st.none(), st.booleans(), st.lists(numbers, max_size=2), st.dictionaries(texts, numbers)
)


def some_of(**keys: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional={key: st.one_of(value, values) for key, value in keys.items()})


metrics = st.dictionaries(texts, numbers, max_size=3)
points = st.sampled_from(["1:2 3:4", f"{2**63}:1", " ".join(f"{2**62 + n}:-1.2345e-100" for n in range(99))])
progress = some_of(
    state=texts,
    step=numbers,
    totalSteps=numbers,
    epoch=numbers,
    loss=numbers,
    examplesPerSecond=numbers,
    stepSeconds=numbers,
    workSeconds=numbers,
    inputSeconds=numbers,
    globalBatch=numbers,
    checkpointStep=numbers,
    metrics=metrics,
    evaluation=some_of(step=numbers, metrics=metrics),
    curves=st.dictionaries(texts, texts | points, max_size=3),
    waitingForStorage=texts,
)
restarts = some_of(
    attempt=numbers,
    counted=numbers,
    not_counted=numbers,
    reset=numbers,
    sinceProgress=numbers,
    furthestStep=numbers,
)
replicas = st.sampled_from(["worker-0", "worker-1", "worker-99999999999", "root-0", "\x1b[31m-1"])
failure = some_of(
    replica=replicas,
    pod=texts,
    reason=texts,
    exitCode=numbers,
    message=texts,
    logTail=texts,
    step=numbers,
    counted=st.booleans(),
    permanent=st.booleans(),
)
reports = some_of(
    phase=st.sampled_from(["meeting", "running", "stopping", "finished", "failed"]),
    world=st.dictionaries(st.sampled_from(["worker", "chief", "\x1b"]), numbers, max_size=2),
    restarts=restarts,
    failure=failure,
    members=st.dictionaries(
        replicas,
        some_of(
            pod=st.sampled_from(["pod-worker-0", "pod-worker-1"]),
            state=texts,
            seconds=numbers,
            report=progress,
        ),
        max_size=3,
    ),
    unreachableSeconds=numbers,
    witness=some_of(leaderLostSeconds=numbers),
)
agents_words = some_of(
    agent=st.just(1), gaveUp=st.booleans(), failure=failure, restarts=restarts, report=progress
)
terminations = st.one_of(texts, progress.map(json.dumps), agents_words.map(json.dumps))
running = st.just({"containerStatuses": [{"name": "trainer", "state": {"running": {}}, "ready": True}]})
ended = st.builds(
    lambda code, reason, message, why: {
        "phase": "Failed" if code else "Succeeded",
        "reason": why,
        "containerStatuses": [
            {
                "name": "trainer",
                "state": {"terminated": {"exitCode": code, "reason": reason, "message": message}},
            }
        ],
    },
    st.sampled_from([0, 1, 85, 137]),
    texts,
    terminations,
    st.one_of(texts, st.sampled_from(["Evicted", "OutOfnvidia.com/gpu"])),
)
waiting = st.builds(
    lambda reason, message: {
        "phase": "Pending",
        "containerStatuses": [
            {"name": "trainer", "state": {"waiting": {"reason": reason, "message": message}}}
        ],
    },
    texts,
    texts,
)
pods = st.tuples(*(st.one_of(running, ended, waiting) for _ in range(2)))


def build_pods(job: dict[str, Any], states: tuple[dict[str, Any], ...]) -> list[dict[str, Any]]:
    owner = {"uid": job["metadata"]["uid"], "controller": True}
    return [
        {
            "metadata": {
                "name": f"pod-worker-{index}",
                "namespace": "default",
                "uid": f"uid-{index}",
                "labels": pod_labels("digits", Replica("worker", index), 1),
                "ownerReferences": [owner],
            },
            "spec": {"nodeName": "node-1"},
            "status": state,
        }
        for index, state in enumerate(states)
    ]


def check(status: TrainJobStatus) -> dict[str, Any]:
    """Return the status as it is written, after all that the API server asks of it."""
    written: dict[str, Any] = json.loads(json.dumps(dump_status(status), allow_nan=False).encode("utf-8"))
    STATUS.validate(written)
    assert len(json.dumps(written)) < 60_000
    for path, schema in walk(CRD):
        limit = {"int32": 2**31, "int64": 2**63}.get(schema.get("format", ""))
        for value in at(written, path):
            assert limit is None or -limit <= value < limit, path
            assert not isinstance(value, str) or all(c in "\n\t" or c.isprintable() for c in value), path
    assert TrainJobStatus.model_validate(written) == status, "what is read again is what was decided on"
    return written


def at(written: Any, path: str) -> list[Any]:
    """Return the values at a path as `walk` has it."""
    found = [written]
    for word in path.replace("[]", ".[]").replace("[*]", ".[*]").split(".") if path else ():
        if word == "[]":
            found = [item for each in found for item in each]
        elif word == "[*]":
            found = [item for each in found for item in each.values()]
        else:
            found = [each[word] for each in found if word in each]
    return found


@given(st.booleans(), pods, st.none() | reports, st.none() | reports)
def test_a_status_can_be_written_with_any_report(
    plain: bool, states: tuple[dict[str, Any], ...], said: dict[str, Any] | None, later: dict[str, Any] | None
) -> None:
    build = build_plain_job if plain else build_job
    job = build(uid="uid-job", metadata={"generation": 1, "resourceVersion": "1"})
    now = NOW
    for report in (said, later, later):
        observed = read_observed(Snapshot(job, build_pods(job, states), agent_report=report))
        planned = plan(observed, now)
        job = {**job, "status": check(planned.status)}
        assert all(printable(event.message) == event.message for event in planned.events)
        now += timedelta(seconds=31)


def test_what_fits_stays_as_it_is() -> None:
    status = TrainJobStatus(state="Running", message="all 2 workers train", attempt=3)
    assert truncated(status) is status


@pytest.mark.parametrize(
    ("longer", "kept"),
    [
        ({"message": 3000 * "é"}, {"message": 1024 * "é" + "…" + 1023 * "é"}),
        ({"attempt": 2**63}, {"attempt": 2**63 - 1}),
        ({"restarts": {"counted": 2**31 - 1, "furthestStep": -5}}, {}),
        ({"progress": {"eta": "\x1b[31m3m\ud800", "stepSeconds": {"a": float("inf")}}}, {}),
        (
            {"progress": {"metrics": {"loss": 99 * "1"}}},
            {"progress": {"metrics": {"loss": f"{32 * '1'}…{31 * '1'}"}}},
        ),
    ],
)
def test_what_is_too_long_is_read_and_cut(longer: dict[str, Any], kept: dict[str, Any]) -> None:
    """One that an earlier version wrote is no damaged one."""
    status = truncated(TrainJobStatus.model_validate(longer))
    written = dump_status(status)
    STATUS.validate(written)
    for key, value in kept.items():
        found = written[key]
        assert found == value or (isinstance(found, dict) and found.items() >= value.items())


def test_every_text_of_the_status_has_a_longest_one() -> None:
    unbounded = [
        path
        for path, schema in walk(CRD)
        if schema["type"] == "string" and not {"maxLength", "format", "enum"} & set(schema)
    ]
    assert unbounded == []
