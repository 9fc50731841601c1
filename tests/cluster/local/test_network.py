"""The network of a run with several workers: what reaches its replicas, and when it has this machine's."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import pytest

from support.local.local_cluster import Lines, build_pod, local_cluster, python
from trainjob.cluster.local import CannotRunHere, LocalCluster
from trainjob.cluster.local import network as module
from trainjob.cluster.local.network import NoOwnNetwork, OwnNetwork, why_not_alone

ADDRESSES = ",".join(f"digits-worker-{n}.digits.default.svc:2222" for n in (0, 1))
SERVER = """
import os, socket, sys
mine, other = os.environ["ADDRESSES"].split(",")[::int(sys.argv[1])]
host, port = mine.split(":")
server = socket.create_server(("0.0.0.0", int(port)))
print("listening on", port, flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(b"a secret")
    connection.close()
"""
CLIENT = """
import os, socket, sys, time
host, port = os.environ["ADDRESSES"].split(",")[0].split(":")
while True:
    try:
        connection = socket.create_connection((host, int(port)), 5)
        break
    except OSError:
        time.sleep(0.05)
print("peer says", connection.recv(100).decode(), flush=True)
time.sleep(1000)
"""


def pods() -> list[dict[str, Any]]:
    env = [{"name": "ADDRESSES", "value": ADDRESSES}]
    return [
        build_pod([*python(SERVER), "1"], env=env),
        build_pod(python(CLIENT), env=env, name="digits-worker-1-aaaaaaaa", index=1),
    ]


async def started(cluster: LocalCluster, lines: Lines) -> tuple[tuple[str, ...], int]:
    """Start both, and return what is said of this machine, and the server's port."""
    notes = cluster.prepare(pods())
    for pod in pods():
        await cluster.create(pod)
    await lines.wait_for("peer says a secret", "worker-1")
    (port,) = (line.split()[-1] for _, line in lines.seen if line.startswith("listening"))
    return notes, int(port)


def is_reachable(port: int) -> bool:
    """Return whether this machine's own network, the one of the test, leads to the port."""
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as connection:
            return connection.recv(100) == b"a secret"
    except OSError:
        return False


async def test_replicas_reach_each_other_and_nobody_else_does(tmp_path: Path) -> None:
    async with local_cluster(tmp_path, network="own") as (cluster, lines):
        notes, port = await started(cluster, lines)
        assert not is_reachable(port)
        assert not any("ports" in note for note in notes)


async def test_with_the_machines_network_a_line_says_what_its_ports_let_others_do(tmp_path: Path) -> None:
    async with local_cluster(tmp_path, network="host") as (cluster, lines):
        notes, port = await started(cluster, lines)
        assert is_reachable(port)
        (note,) = (note for note in notes if "ports" in note)
        first, last = map(int, re.findall(r"\d+", note)[:2])
        assert first <= port <= last
        assert note.endswith("let anyone who can reach this machine read and write files (--network host)")


async def test_where_the_system_allows_none_a_run_says_so_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.sys, "platform", "darwin")
    with pytest.raises(NoOwnNetwork):
        OwnNetwork()
    async with local_cluster(tmp_path) as (cluster, _):
        assert any("(darwin has no network namespaces)" in note for note in cluster.prepare(pods()))
    async with local_cluster(tmp_path, network="own") as (cluster, _):
        with pytest.raises(CannotRunHere, match="--network own: darwin has no"):
            cluster.prepare(pods())


async def test_one_worker_has_the_machines_network(tmp_path: Path) -> None:
    code = "import socket; print([name for _, name in socket.if_nameindex()])"
    here = [name for _, name in socket.if_nameindex()]
    async with local_cluster(tmp_path) as (cluster, lines):
        assert not any("ports" in note for note in cluster.prepare([build_pod(python(code))]))
        await cluster.create(build_pod(python(code)))
        await lines.wait_for(str(here))


@pytest.mark.parametrize(
    ("words", "variables", "script", "reason"),
    [
        (["python", "train.py"], ["8"], "x = 1", ""),
        (["python", "train.py"], [], "x, y = keras.datasets.mnist.load_data()", "keras.datasets"),
        (["python", "train.py"], [], "import wandb", "wandb"),
        (["python", "train.py", "--data", "gs://bucket/mnist"], [], "", "gs://"),
        (["python", "train.py"], ["s3://bucket/data"], "", "s3://"),
        (["python", "train.py"], ["file:///data"], "", ""),
        (["python", "away.py"], [], "import wandb", ""),
    ],
)
def test_what_needs_another_network(
    words: list[str], variables: list[str], script: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(script)
    why = why_not_alone(words, variables, tmp_path)
    assert bool(why) == bool(reason)
    assert why.endswith(reason)


def test_an_own_network_ends_with_its_process(tmp_path: Path) -> None:
    network = OwnNetwork()
    holder = network._holder
    network.close()
    network.close()
    assert holder.returncode == 0
    assert network.namespaces == ()
