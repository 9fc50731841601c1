"""The server of `trainjob ui`: who may read, and what its stream says while jobs change."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from tempfile import gettempdir
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import aiohttp
import pytest

from support.cli.played_run import PlayedRun
from support.cli.program import NOW, build_replica, build_run, condition, running
from support.cli.requests import Answer, Asked
from support.cli.server import CliServer
from support.cli.stored_jobs import RUNNING, call, ended, let_time_pass, store_run, stored_job, stored_pod
from trainjob.client.connection import ClusterOptions
from trainjob.client.history import History
from trainjob.client.run_record import index_name, read_run_folder
from trainjob.client.runs import LocalJob
from trainjob.client.web.live_jobs import LiveJobs
from trainjob.client.web.server import serve

GUARD_SECONDS = 60.0
"""Against hanging only."""

NOWHERE = ClusterOptions()
COMPLETE = condition("Complete", "TrainingFinished", "done")
EVENT = {
    "apiVersion": "v1",
    "kind": "Event",
    "metadata": {"name": "digits.1"},
    "involvedObject": {"uid": "uid-of-digits"},
    "type": "Warning",
    "reason": "Restarted",
    "message": "worker 1 crashed",
    "lastTimestamp": "2026-01-02T03:04:05Z",
}


class Client:
    """A browser that has opened the address, and is at the page now."""

    def __init__(self, session: aiohttp.ClientSession, page: str, addresses: list[str]) -> None:
        self.session, self.page, self.addresses = session, page, addresses
        self.origin = f"http://{urlsplit(page).netloc}"

    @asynccontextmanager
    async def stream(self, **parameters: str) -> AsyncIterator[Stream]:
        async with self.session.get(f"{self.page}stream", params=parameters) as response:
            assert response.headers["Content-Type"] == "text/event-stream"
            yield Stream(response)


class Stream:
    """The events of one stream."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._events: dict[str, list[Any]] = {}

    async def until(self, event: str, is_it: Callable[[Any], object] = lambda _: True) -> Any:
        """Return the next data of this event that meets the condition; those of other events are kept."""
        seen = self._events.setdefault(event, [])
        passed = []
        try:
            async with asyncio.timeout(GUARD_SECONDS):
                while True:
                    while not seen:
                        await self._read()
                    passed.append(seen.pop(0))
                    if is_it(passed[-1]):
                        return passed[-1]
        except TimeoutError:
            raise AssertionError(f"no such {event}: {passed[-3:]}") from None

    async def _read(self) -> None:
        text = (await self._response.content.readuntil(b"\n\n", max_size=1 << 26)).decode()
        fields = dict(line.split(": ", 1) for line in text.splitlines() if line)
        if "event" in fields:
            self._events.setdefault(fields["event"], []).append(json.loads(fields["data"]))

    async def lines(self, count: int) -> list[list[Any]]:
        """Return the next so many lines of the log."""
        found: list[list[Any]] = []
        while len(found) < count:
            found += await self.until("log")
        return found


@asynccontextmanager
async def opened(where: ClusterOptions = NOWHERE) -> AsyncIterator[Client]:
    jobs = LiveJobs(where)
    following = asyncio.ensure_future(jobs.run())
    addresses = list[str]()
    try:
        async with serve(jobs, on_opened=addresses.append) as address, aiohttp.ClientSession() as session:
            addresses.append(address)
            async with session.get(address) as response:
                assert response.status == 200
            yield Client(session, str(response.url), addresses)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


@pytest.fixture(autouse=True)
def _no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


# Who may read.


async def test_only_who_has_the_address_may_read() -> None:
    async with opened() as client, aiohttp.ClientSession() as stranger:
        secret = urlsplit(client.page).path
        guesses = ("/", "/page.js", "/stream", "/nothing", "/?token=wrong", "/?token=%ff", "/?token=", "//")
        for path in (*guesses, secret[:-1], secret[:-2] + "/", f"/x{secret}", secret.upper()):
            async with stranger.get(client.origin + path) as response:
                assert response.status == 403
                assert "works once: open the last one" in await response.text()


async def test_an_address_opens_the_page_once_and_the_page_stays_open() -> None:
    async with opened() as client, aiohttp.ClientSession() as another:
        used, following = client.addresses
        for _ in range(2):
            async with another.get(used) as response:
                assert response.status == 403
        async with another.head(following) as response:
            assert response.status == 403  # who only looks doesn't use it up
        async with another.get(following, allow_redirects=False) as response:
            assert response.status == 303
            assert response.headers["Location"] == urlsplit(client.page).path
        for path in ("", "page.js", ""):  # reloaded, or opened in another tab
            async with client.session.get(client.page + path) as response:
                assert response.status == 200
        assert len({*client.addresses}) == 3


async def test_nothing_of_the_page_goes_to_other_ports_or_sites() -> None:
    async with opened() as client:
        for address in (client.addresses[-1], client.page, f"{client.page}stream", client.origin):
            async with client.session.get(address, allow_redirects=False) as response:
                assert "Set-Cookie" not in response.headers
                assert response.headers["Referrer-Policy"] == "no-referrer"
                assert response.headers["Cache-Control"] == "no-store"


@asynccontextmanager
async def tab_beside_a_flood(folder: Path, size: int) -> AsyncIterator[asyncio.StreamReader]:
    """A tab that has read nothing while a log has grown by `size` MB, as another tab has seen."""
    run, key = PlayedRun(folder, build_run([build_replica(step=1)])), f"run/{index_name(folder)}"
    async with run.serve(), opened() as client:
        run.write_log("worker-0", "first")
        async with client.stream(job=key) as stream:
            await stream.lines(1)
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(client.page).port, limit=1)
            path = f"{urlsplit(client.page).path}stream?job={quote(key, safe='')}"
            writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            await reader.readexactly(1)
            for number in range(size):
                lines = [f"{number} {line:>900}" for line in range(1000)]
                run.write_log("worker-0", *lines)
                await stream.until("log", lambda shown, last=lines[-1]: shown[-1][1] == last)
        yield reader
        writer.close()


async def test_the_newest_lines_wait_for_a_tab_that_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainjob.client.web.server._PATIENCE_SECONDS", 10 * GUARD_SECONDS)
    async with tab_beside_a_flood(tmp_path / "digits", 28) as tab, asyncio.timeout(GUARD_SECONDS):
        read = bytearray()
        while f"27 {999:>900}".encode() not in read[-2000:]:
            read += await tab.read(1 << 16)
    assert b" lines are left out: they came faster than this page can read" in read
    assert len(read) < 20_000_000


async def test_a_tab_that_does_not_read_for_long_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_late, is_left = asyncio.Event(), asyncio.Event()

    def has_passed() -> bool:
        if is_late.is_set():
            is_left.set()
        return is_late.is_set()

    monkeypatch.setattr("trainjob.client.web.server._PATIENCE_SECONDS", 12345.0)
    let_time_pass(12345.0, has_passed, monkeypatch)
    async with tab_beside_a_flood(tmp_path / "digits", 15) as tab, asyncio.timeout(GUARD_SECONDS):
        is_late.set()
        await is_left.wait()
        with suppress(ConnectionError):
            while await tab.read(1 << 16):
                pass


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:9", 200),
        ("localhost", 200),
        ("evil.example", 403),
        ("evil.example:80", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example:1", 403),
        ("", 403),
    ],
)
async def test_no_other_name_leads_here(host: str, status: int) -> None:
    async with opened() as client:
        for address in (f"{client.page}page.css", client.addresses[-1]):
            response = await client.session.get(address, headers={"Host": host})
            assert response.status == status


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
async def test_it_only_reads(method: str) -> None:
    async with opened() as client:
        for path in ("", "stream"):
            async with client.session.request(method, client.page + path) as response:
                assert response.status == 405


async def test_every_answer_says_what_browsers_may_do_with_it() -> None:
    async with opened() as client:
        for path in ("", "page.js", "page.css", "stream", "nothing", "/nothing"):
            async with client.session.get(urljoin(client.page, path)) as response:
                rules = response.headers["Content-Security-Policy"].split("; ")
                assert {"default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"} <= set(rules)
                assert "unsafe" not in response.headers["Content-Security-Policy"]
                assert response.headers["X-Content-Type-Options"] == "nosniff"
                assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
                assert "Access-Control-Allow-Origin" not in response.headers


def test_the_page_loads_only_its_own_files() -> None:
    page, script = ((files("trainjob.client.web") / name).read_text() for name in ("page.html", "page.js"))
    assert "://" not in page
    assert re.findall(r"\S*://\S*", script) == ['"http://www.w3.org/2000/svg";']  # a name, no address
    assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval", script)


# Runs on this machine.


async def test_a_run_is_followed_to_its_end(tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    store_run(tmp_path / "earlier", build_run(state="Complete"), ended=NOW, end="complete")
    key = f"run/{index_name(folder)}"
    run = PlayedRun(folder, build_run([build_replica(step=1, total_steps=4)], message="training"))
    async with opened() as client:
        async with client.stream(job=key) as stream:
            assert await stream.until("job") is None
            async with run.serve():
                run.write_log("worker-0", "first", "I0000 00:00:01.0 1 a.cc:1] harmless")
                job = await stream.until("job", lambda job: job and job["replicas"])
                assert (job["state"], job["steps"], job["curves"]) == ("Running", "1/4", [])
                assert sorted((await stream.lines(2))[:2]) == [
                    ["worker-0", "I0000 00:00:01.0 1 a.cc:1] harmless", True],
                    ["worker-0", "first", False],
                ]
                (folder / "logs/history.jsonl").write_text('{"step": 2, "metrics": {"loss": 0.5}}\n')
                run.write_log("worker-1", "\x1b[31m<b>second")
                run.show(build_run([build_replica(step=2, total_steps=4)], message="training"))
                job = await stream.until("job", lambda job: job["steps"] == "2/4" and job["curves"])
                assert job["curves"][0]["series"] == [{"label": "training", "points": [[2, 0.5]]}]
                assert await stream.lines(1) == [["worker-1", "<b>second", False]]
                run.show(build_run([build_replica()], state="Complete", conditions=[COMPLETE]))
                await stream.until("job", lambda job: job["state"] == "Complete")
        async with client.stream(job=key, replica="worker-1") as stream:
            listed = await stream.until("jobs", lambda jobs: len(jobs["rows"]) == 2)
            assert {row["name"] for row in listed["rows"]} == {"digits", "earlier"}
            assert await stream.lines(1) == [["worker-1", "<b>second", False]]
            await LocalJob(read_run_folder(folder)).delete()  # type: ignore[arg-type]
            assert await stream.until("job", lambda job: job is None) is None
            await stream.until("jobs", lambda jobs: [row["name"] for row in jobs["rows"]] == ["earlier"])


async def test_the_newest_runs_of_its_name_are_drawn_beside_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[str]()

    def read_one(folder: Path, on_damage: Callable[[str], None]) -> History:
        read.append(folder.name)
        return {"loss": {1: float(folder.name[-1])}}

    monkeypatch.setattr("trainjob.client.web.live_jobs.read_history", read_one)
    run = PlayedRun(tmp_path / "digits.2", build_run([build_replica(step=1)]))
    names = ("digits.1", "digits.3", "digits.4", "digits.5", "digits-b.6", "digitsx.7", "other/digits.8")
    for number, name in enumerate(names):
        store_run(tmp_path / name, began=NOW + timedelta(hours=number), ended=NOW, end="complete")
    async with opened() as client, client.stream(job=f"run/{index_name(run.folder)}") as stream:
        await stream.until("jobs", lambda jobs: len(jobs["rows"]) == len(names))
        async with run.serve():
            job = await stream.until("job", lambda job: job and len(job["curves"][0]["series"]) == 4)
            assert job["curves"][0]["series"] == [
                {"label": "training", "points": [[1, 2.0]]},
                *(
                    {"label": f"digits.{number}", "other": place, "points": [[1, float(number)]]}
                    for place, number in enumerate((5, 4, 3))
                ),
            ]
            for step in (2, 3):
                run.show(build_run([build_replica(step=step)]))
                await stream.until("job", lambda job, step=step: job["steps"] == f"{step}")
    assert sorted(name for name in read if name != "digits.2") == ["digits.3", "digits.4", "digits.5"]


async def test_a_run_that_is_started_again_is_another_one(tmp_path: Path) -> None:
    folder = tmp_path / "digits"
    key = f"run/{index_name(folder)}"
    store_run(folder, build_run(message="done"), ended=NOW, end="interrupted")
    run = PlayedRun(folder, build_run([build_replica(step=1)], message="again"))
    async with opened() as client, client.stream(job=key) as stream:
        await stream.until("job", lambda job: job and job["state"] == "Interrupted")
        run.write_log("worker-0", "again")
        async with run.serve():
            await stream.until("job", lambda job: job["state"] == "Running" and job["message"] == "again")
            run.show(build_run([build_replica(step=7)], message="further"))
            await stream.until("job", lambda job: job["steps"] == "7")


# Jobs of a cluster.


def names(jobs: dict[str, Any]) -> list[str]:
    return [f"{row['name']} {row['state']}" for row in jobs["rows"]]


async def test_a_job_in_a_cluster_is_followed(api: CliServer) -> None:
    api.put(stored_job(progress={"step": 3, "totalSteps": 9, "metrics": {"loss": "0.5"}}))
    api.put(stored_pod(container=RUNNING))
    api.write_log("digits-worker-0-1", "2026-01-02T03:04:05.000000000Z first")
    async with opened() as client, client.stream(job="job/default/digits") as stream:
        job = await stream.until("job", lambda job: job and job["replicas"])
        assert (job["place"], job["steps"], job["events"]) == ("namespace default", "3/9", [])
        assert job["notes"][0].startswith("The curves of a job in a cluster have only the points that")
        assert await stream.lines(1) == [["worker-0", "first", False]]
        api.put(EVENT)
        job = await stream.until("job", lambda job: job["events"])
        assert job["events"][0]["message"] == "worker 1 crashed"
        api.put(stored_job(progress={"step": 4, "metrics": {"loss": "0.25"}}))
        job = await stream.until("job", lambda job: job["steps"] == "4")
        assert job["curves"][0]["series"][0]["points"] == [[3, 0.5], [4, 0.25]]
        api.put(stored_job(name="other"))
        await stream.until("jobs", lambda jobs: names(jobs) == ["digits Running", "other Running"])
        api.put(stored_pod(container=ended()))
        api.put(stored_job("Complete", message="done", curves={"loss": "1:2.5 2:1 3:0.5 4:0.25"}))
        job = await stream.until("job", lambda job: job["state"] == "Complete")
        assert job["curves"][0]["series"][0]["points"] == [[1, 2.5], [2, 1.0], [3, 0.5], [4, 0.25]]
        assert job["notes"][0].startswith("The curves of a job in a cluster have some 200 points")
        await stream.until("jobs", lambda jobs: names(jobs) == ["other Running", "digits Complete"])
        api.delete("trainjobs", "digits")
        assert await stream.until("job", lambda job: job is None) is None
        await stream.until("jobs", lambda jobs: names(jobs) == ["other Running"])
    assert {asked.verb for asked in api.asked} <= {"get", "list", "watch", "log"}


async def test_what_may_not_be_read_is_named(api: CliServer) -> None:
    def refuse(asked: Asked) -> None:
        if asked.plural == "events":
            raise Answer(403, "Forbidden", "no events for you")

    api.rules.append(refuse)
    api.put(stored_job())
    async with opened() as client, client.stream(job="job/default/digits") as stream:
        job = await stream.until("job", lambda job: job and len(job["notes"]) > 1)
    assert job["notes"][1] == "Its events aren't shown: the API server doesn't allow it: no events for you"


async def test_a_cluster_that_cannot_be_reached_is_a_problem_of_the_page(
    api: CliServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store_run(tmp_path / "digits")
    api.url = "http://127.0.0.1:1"
    monkeypatch.setenv("KUBECONFIG", str(api.write_kubeconfig(tmp_path / "away")))
    async with opened() as client, client.stream() as stream:
        jobs = await stream.until("jobs", lambda jobs: jobs["problem"] and jobs["rows"])
    assert jobs["problem"].startswith("the API server http://127.0.0.1:1 can't be reached")
    assert names(jobs) == ["digits Running"]


# The command.


def test_the_command_prints_the_address_and_ends_by_ctrl_c(tmp_path: Path) -> None:
    with running("ui", cwd=tmp_path) as ui:
        ui.read_until("http://127.0.0.1:", "Ctrl-C ends the page")
        ui.process.send_signal(signal.SIGINT)
        assert ui.finish() == 130
    assert len(ui.lines) == 2


def test_a_browser_is_given_a_file_of_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other users can read its command line, but not the file."""
    browser = tmp_path / "browser"
    browser.write_text(
        f"#!{sys.executable}\n"
        "import os, re, sys, urllib.request\n"
        "file = sys.argv[1].removeprefix('file://')\n"
        "address = re.search('url=([^\"]*)', open(file).read())[1]\n"
        "status = urllib.request.urlopen(address).status\n"
        "print('browser', oct(os.stat(file).st_mode), status, *sys.argv[1:], flush=True)\n"
    )
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    with running("ui", "--open", cwd=tmp_path) as ui:
        ui.read_until("Ctrl-C ends the page", "The page is open. To open it once more: http", "browser")
        ui.process.send_signal(signal.SIGINT)
        assert ui.finish() == 130
    (seen,) = (line for line in ui.lines if line.startswith("browser"))
    _, mode, status, file = seen.split()
    assert (mode, status) == ("0o100600", "200")
    assert re.fullmatch(rf"file://{gettempdir()}/trainjob-[^/]*/open\.html", file)
    assert not Path(file.removeprefix("file://")).exists()
    addresses = re.findall(r"http://\S*", "\n".join(ui.lines))
    assert len({*addresses}) == 2


def test_a_port_that_is_in_use_and_a_wrong_context_are_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = call("ui", "--port", port)
    assert result.exit_code == 2
    assert f"port {port} of 127.0.0.1 can't be used: " in result.stderr
    result = call("ui", "--context", "none")
    assert result.exit_code == 4
    assert "there is no kubeconfig" in result.stderr
