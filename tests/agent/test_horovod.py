"""Horovod's variables and rendezvous, with stand-ins that speak its protocol; `tests/fleet` runs Horovod."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from support.agents.agent_job import Job
from trainjob_trainer.agent import horovod
from trainjob_trainer.agent.horovod import (
    LARGEST_VALUE,
    LONGEST_START_SECONDS,
    Ring,
    StoreServer,
    build_variables,
    find_interface,
)
from trainjob_trainer.task import Task

WORKERS = {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}
STORE = {"host": "10.0.0.1", "port": 4444}


@pytest.mark.parametrize(
    ("cluster", "replica", "rank", "size"),
    [
        (WORKERS, "worker-0", "0", "2"),
        (WORKERS, "worker-1", "1", "2"),
        ({"chief": ["a:1"], **WORKERS}, "chief-0", "0", "3"),
        ({"chief": ["a:1"], **WORKERS}, "worker-1", "2", "3"),
        ({**WORKERS, "evaluator": ["e:1"]}, "worker-1", "1", "2"),
        ({"worker": ["a:1"]}, "worker-0", "0", "1"),
    ],
)
def test_each_replica_is_a_host_with_one_rank(
    cluster: Mapping[str, list[str]], replica: str, rank: str, size: str
) -> None:
    role, _, index = replica.rpartition("-")
    assert build_variables(Task(role, int(index), cluster), STORE, "eth0", {}) == {
        "HOROVOD_RANK": rank,
        "HOROVOD_SIZE": size,
        "HOROVOD_LOCAL_RANK": "0",
        "HOROVOD_LOCAL_SIZE": "1",
        "HOROVOD_CROSS_RANK": rank,
        "HOROVOD_CROSS_SIZE": size,
        "HOROVOD_HOSTNAME": replica,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "4444",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "eth0",
        "HOROVOD_GLOO_TIMEOUT_SECONDS": str(LONGEST_START_SECONDS),
    }


def test_a_job_chooses_its_interface_but_not_its_rank() -> None:
    chosen = {"HOROVOD_GLOO_IFACE": "net1", "HOROVOD_RANK": "7"}
    variables = build_variables(Task("worker", 1, WORKERS), STORE, "eth0", chosen)
    assert "HOROVOD_GLOO_IFACE" not in variables
    assert variables["HOROVOD_RANK"] == "1"


def test_the_interface_is_that_of_the_address() -> None:
    assert find_interface("127.0.0.1") == "lo"
    assert find_interface("192.0.2.7") == ""
    assert find_interface("::1") == ""


@asynccontextmanager
async def serving() -> AsyncIterator[StoreServer]:
    server = StoreServer("127.0.0.1")
    try:
        yield server
    finally:
        server.close()


async def send(port: int, text: bytes) -> bytes:
    """Send some bytes, and return all that comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(text)
    try:
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def ask(port: int, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    answer, _, content = (await send(port, head + body)).partition(b"\r\n\r\n")
    return int(answer.split()[1]), content


async def test_values_are_kept_by_scope_until_they_are_deleted() -> None:
    async with serving() as server:
        assert await ask(server.port, "PUT", "/global/0", b"\x00address") == (200, b"")
        assert await ask(server.port, "GET", "/global/0") == (200, b"\x00address")
        assert await ask(server.port, "GET", "/local_worker-0/0") == (404, b"")
        assert await ask(server.port, "DELETE", "/global/0") == (200, b"")
        assert await ask(server.port, "GET", "/global/0") == (404, b"")


async def test_a_rank_that_waits_is_answered_once_the_late_one_is_there() -> None:
    async with serving() as server:
        waiting = asyncio.ensure_future(ask(server.port, "GET", "/global/1"))
        await ask(server.port, "PUT", "/global/0", b"of another")
        await ask(server.port, "PUT", "/global/1", b"late")
        assert await waiting in ((200, b"late"), (404, b""))
        assert await ask(server.port, "GET", "/global/1") == (200, b"late")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"POST /global/0 HTTP/1.1\r\n\r\n", b"501"),
        (b"GET /global HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /global/0/1 HTTP/1.1\r\n\r\n", b"400"),
        (b"GET //0 HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /global/" + b"x" * 600 + b" HTTP/1.1\r\n\r\n", b"400"),
        (b"\xff\x00\r\n\r\n", None),
        (b"TRAINJOB-AGENT/1\r\n\r\n", None),
        (b"PUT /global/0 HTTP/1.1\r\nContent-Length: many\r\n\r\n", b"400"),
        (b"PUT /global/0 HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400"),
        (f"PUT /global/0 HTTP/1.1\r\nContent-Length: {LARGEST_VALUE + 1}\r\n\r\n".encode(), b"413"),
        (b"x" * 100_000, b"414"),
        (b"PUT /global/0 HTTP/1.1\r\nContent-Length: 5\r\n\r\nabc", b""),
        (b"GET /global/0 HTTP/1.1\r\n", b""),
    ],
)
async def test_garbage_ends_its_own_connection_alone(
    monkeypatch: pytest.MonkeyPatch, text: bytes, status: bytes | None
) -> None:
    async with serving() as server:
        with monkeypatch.context() as patch:
            if not status:  # the rest never comes
                patch.setattr(horovod.Request, "timeout", 0.2)
            answer = await send(server.port, text)
        assert status is None or answer.split(b" ")[1:2] == ([status] if status else [])
        assert await ask(server.port, "PUT", "/global/1", b"value") == (200, b"")
        assert await ask(server.port, "GET", "/global/1") == (200, b"value")


async def test_a_full_store_says_so_and_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod, "LARGEST_STORE", 1100)
    async with serving() as server:
        assert await ask(server.port, "PUT", "/global/0", b"value") == (200, b"")
        assert await ask(server.port, "PUT", "/global/1", bytes(100)) == (507, b"")
        assert await ask(server.port, "GET", "/global/0") == (200, b"value")


def start_message(generation: str, cluster: Mapping[str, list[str]]) -> dict[str, Any]:
    return {"type": "start", "epoch": generation, "tfConfig": {"cluster": cluster}}


async def test_each_attempt_has_a_store_of_its_own() -> None:
    ring = Ring("127.0.0.1")
    first = [ring.add_rendezvous(start_message("1.1", WORKERS))["rendezvous"] for _ in range(2)]
    assert first[0] == first[1]
    await ask(first[0]["port"], "PUT", "/global/0", b"of attempt 1")
    second = ring.add_rendezvous(start_message("1.2", WORKERS))["rendezvous"]
    with pytest.raises(ConnectionError):
        await ask(first[0]["port"], "GET", "/global/0")
    assert await ask(second["port"], "GET", "/global/0") == (404, b"")
    ring.close()


@pytest.mark.parametrize(
    "message",
    [
        {"type": "stop", "attempt": 1},
        start_message("1.1", {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]}),
    ],
    ids=["no start", "parameter servers"],
)
async def test_other_messages_stay_as_they_are(message: dict[str, Any]) -> None:
    assert Ring("127.0.0.1").add_rendezvous(message) == message


STAND_IN = '''
"""Meets the other ranks as Horovod does; rank 1's first attempt fails before it has put its address."""
import json, os, pathlib, sys, time, urllib.error, urllib.request

env, folder = os.environ, pathlib.Path(sys.argv[1])
rank, size = int(env["HOROVOD_RANK"]), int(env["HOROVOD_SIZE"])
url = f"http://{env['HOROVOD_GLOO_RENDEZVOUS_ADDR']}:{env['HOROVOD_GLOO_RENDEZVOUS_PORT']}/global/"

def ask(method, key, body=None):
    request = urllib.request.Request(url + str(key), body, method=method)
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).read().decode()

def wait(key):
    while True:
        try:
            return ask("GET", key)
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise

if env["TRAINJOB_ATTEMPT"] == "1" and rank == 1:
    wait(0)
    sys.exit(3)
ask("PUT", rank, f"{rank} of attempt {env['TRAINJOB_ATTEMPT']}".encode())
met = [wait(key) for key in range(size)]
result = folder / f"met-{rank}.json"
result.with_suffix(".new").write_text(json.dumps({"met": met, "interface": env["HOROVOD_GLOO_IFACE"]}))
result.with_suffix(".new").rename(result)
ask("DELETE", f"{rank}-done")
'''


def test_ranks_meet_again_after_a_restart_in_place(tmp_path: Path) -> None:
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    with Job(tmp_path, {"worker": 2}) as job:
        job.command = (job.interpreter, str(tmp_path / "stand_in.py"), str(tmp_path))
        job.start()
        assert job.codes() == {"worker-0": 0, "worker-1": 0}
    for rank in range(2):
        met = json.loads((tmp_path / f"met-{rank}.json").read_text())
        assert met == {"met": ["0 of attempt 2", "1 of attempt 2"], "interface": "lo"}
