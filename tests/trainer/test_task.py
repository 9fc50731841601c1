from __future__ import annotations

import json
from typing import Any

import pytest

from trainjob_trainer import InvalidConfiguration, Task

CLUSTER = {"worker": ["a:1", "b:2"], "evaluator": ["c:3"]}


def parse(config: Any) -> Task:
    return Task.from_environment({"TF_CONFIG": json.dumps(config)})


@pytest.mark.parametrize("env", [{}, {"TF_CONFIG": ""}, {"TF_CONFIG": " "}, {"TF_CONFIG": "{}"}])
def test_a_process_by_itself(env: dict[str, str]) -> None:
    task = Task.from_environment(env)

    assert (task.replica, task.num_workers, task.is_writer) == ("worker-0", 1, True)
    assert not task.is_distributed
    assert task.address is None


@pytest.mark.parametrize(
    ("role", "index", "writer", "evaluator", "address"),
    [
        ("worker", 0, True, False, "a:1"),
        ("worker", 1, False, False, "b:2"),
        ("evaluator", 0, False, True, "c:3"),
    ],
)
def test_a_member_of_a_cluster(role: str, index: int, writer: bool, evaluator: bool, address: str) -> None:
    task = parse({"cluster": CLUSTER, "task": {"type": role, "index": index}})

    assert (task.is_writer, task.is_evaluator, task.address) == (writer, evaluator, address)
    assert task.is_distributed is not evaluator
    assert task.num_workers == 2


def test_the_chief_writes_instead_of_worker_0_and_counts_as_a_worker() -> None:
    cluster = {"chief": ["a:1"], "worker": ["b:2"]}

    chief = parse({"cluster": cluster, "task": {"type": "chief", "index": 0}})
    worker = parse({"cluster": cluster, "task": {"type": "worker", "index": 0}})

    assert (chief.is_writer, worker.is_writer, worker.num_workers) == (True, False, 2)
    assert (chief.writer_address, worker.writer_address) == ("a:1", "a:1")


@pytest.mark.parametrize(
    ("role", "coordinates", "serves", "writes"),
    [
        ("chief", True, False, True),
        ("worker", False, True, False),
        ("ps", False, True, False),
        ("evaluator", False, False, False),
    ],
)
def test_beside_parameter_servers(role: str, coordinates: bool, serves: bool, writes: bool) -> None:
    cluster = {"chief": ["a:1"], "worker": ["b:2"], "ps": ["c:3"], "evaluator": ["d:4"]}
    task = parse({"cluster": cluster, "task": {"type": role, "index": 0}})

    assert (task.is_coordinator, task.is_server, task.is_writer) == (coordinates, serves, writes)
    assert (task.num_workers, task.has_peers, task.writer_address) == (1, True, "a:1")


def test_an_evaluator_need_not_be_listed() -> None:
    task = parse({"cluster": {"worker": ["a:1"]}, "task": {"type": "evaluator", "index": 0}})

    assert task.is_evaluator
    assert task.address is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "TF_CONFIG: not valid JSON"),
        ("[]", "TF_CONFIG: must be a JSON object"),
        ('{"cluster": []}', "TF_CONFIG cluster: must be an object"),
        ('{"cluster": {"wroker": ["a:1"]}}', "unknown role 'wroker'"),
        ('{"cluster": {"worker": "a:1"}}', "cluster.worker: must be a list"),
        ('{"cluster": {"worker": ["a:1", "b"]}}', r"cluster.worker\[1\]: must be \"host:port\", got \"b\""),
        ('{"cluster": {"worker": ["a:0"]}}', r"cluster.worker\[0\]"),
        ('{"cluster": {"worker": ["a:65536"]}}', r"cluster.worker\[0\]"),
        ('{"cluster": {"worker": ["a:²"]}}', r"cluster.worker\[0\]"),
        ('{"cluster": {"worker": [7]}}', r"cluster.worker\[0\]"),
        ('{"cluster": {"chief": ["a:1", "b:1"]}}', "at most one chief"),
        ('{"cluster": {"ps": ["a:1"], "worker": ["b:1"]}}', "cluster.chief: missing; parameter servers"),
        ('{"cluster": {"ps": ["a:1"], "chief": ["b:1"]}}', "cluster.worker: missing; parameter servers"),
        ('{"cluster": {"worker": ["a:1"]}}', "task: must be an object, got null"),
        ('{"task": {"type": "boss", "index": 0}}', "task.type"),
        ('{"task": {"type": "worker", "index": true}}', "task.index"),
        ('{"task": {"type": "worker", "index": -1}}', "task.index"),
        ('{"task": {"type": "worker", "index": "0"}}', "task.index"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}', "worker 1 is not in"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "chief", "index": 0}}', "lists 0 of that role"),
    ],
)
def test_a_malformed_one_is_refused_with_its_field(text: str, words: str) -> None:
    with pytest.raises(InvalidConfiguration, match=words):
        Task.from_environment({"TF_CONFIG": text})
