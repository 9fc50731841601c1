"""The page of `trainjob ui` in a real browser, while jobs change."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from testbed import Unfit
from testbed.browser import Page, open_page

from support.cli.outputs import write_output
from support.cli.played_run import PlayedRun
from support.cli.program import NOW, build_replica, build_run
from support.cli.server import CliServer
from support.cli.stored_jobs import store_run, stored_job
from trainjob.client.connection import ClusterOptions
from trainjob.client.run_record import index_name
from trainjob.client.view import JobView
from trainjob.client.web.live_jobs import LiveJobs
from trainjob.client.web.server import serve
from trainjob.cluster.protocol import PostedEvent

pytestmark = pytest.mark.cluster  # it needs a browser

EVIL = "<img src=x onerror=alert(1)>"
HARMLESS = "I0000 00:00:00.000000 1 cpu.cc:1] harmless"


@pytest.fixture
async def page() -> AsyncIterator[Page]:
    """A page of headless Chromium."""
    try:
        async with open_page() as opened:
            yield opened
    except Unfit as unfit:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(str(unfit))


@asynccontextmanager
async def served() -> AsyncIterator[str]:
    jobs = LiveJobs(ClusterOptions())
    following = asyncio.ensure_future(jobs.run())
    try:
        async with serve(jobs) as address:
            yield address
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def training(step: int, **fields: Any) -> JobView:
    """Sixteen workers at this step."""
    workers = [build_replica(f"worker-{i}", step=step, total_steps=100, loss=0.5) for i in range(16)]
    return build_run(workers, message=EVIL, **fields)


def text(selector: str, part: str) -> str:
    """An expression: an element has this text."""
    return f"document.querySelector({selector!r})?.innerText.includes({part!r})"


async def choose(page: Page, key: str) -> None:
    """Choose the job with keys alone: filter, go to it, enter."""
    await page.press("/")
    for letter in key:
        await page.press(letter)
    await page.until("document.querySelectorAll('#rows a').length === 1")
    await page.press("Escape")
    await page.press("j")
    await page.until("document.activeElement.matches('#rows a')")
    await page.press("Enter")


async def test_the_page_shows_jobs_as_they_change(page: Page, api: CliServer, tmp_path: Path) -> None:
    for number in range(200):
        api.put(stored_job(name=f"job-{number}", progress={"step": number, "totalSteps": 400}))
    run = PlayedRun(tmp_path / "digits", training(10))
    run.write_log("worker-0", "zero", EVIL, HARMLESS)
    run.write_log("worker-1", "one")
    history = tmp_path / "digits/logs/history.jsonl"
    history.write_text('{"step": 10, "metrics": {"loss": 1.0, "accuracy": 0.5}}\n')
    async with run.serve():
        async with served() as address:
            await page.look(1280, 900)
            await page.open(address)
            await page.until("document.querySelectorAll('#rows a').length === 201")
            assert await page.evaluate("location.search") == ""
            await choose(page, "digits")
            await shows_everything(page)
            with history.open("a") as file:
                file.write('{"step": 20, "metrics": {"loss": 0.25, "accuracy": 0.875}}\n')
            run.write_log("worker-1", "two")
            run.show(training(20, events=(PostedEvent(NOW, "Warning", "Restarted", EVIL),)))
            await shows_what_has_changed(page)
            await fits(page)
        await page.until(text("#connection", "connection lost"))
    assert [problem for problem in page.problems if "stream" not in problem] == []


async def test_runs_of_its_name_are_drawn_beside_a_run(page: Page, tmp_path: Path) -> None:
    for number, loss in enumerate((0.5, 0.75)):
        metrics = f'"metrics": {{"loss": {loss}, "val_loss": {loss}}}}}\n'
        folder = tmp_path / ("digits.1" if number else "digits")
        lines = [f'{{"step": {step * (1 + number)}, {metrics}' for step in (10, 20)]
        write_output(folder, {"logs/history.jsonl": "".join(lines).encode()})
        store_run(folder, training(10), ended=NOW, end="failed")
    drawn = "[...document.querySelectorAll('#curves path')].map((path) => path.getAttribute('class')).join()"
    async with served() as address:
        await page.look(1280, 900)
        await page.open(f"{address}#run%2F{index_name(tmp_path / 'digits')}")
        await page.until(text("#curves", "digits.1 validation 0.75"))
        assert await page.evaluate(drawn) == "first other other-0,second other other-0,first,second"
        label = await page.evaluate("document.querySelector('#curves svg').ariaLabel")
        assert label.startswith("loss at step 20: training 0.5, validation 0.5, digits.1 0.75")
        assert (await page.picture()).startswith(b"\x89PNG")
        await page.evaluate("document.getElementById('others').click()")
        await page.until(f"{drawn} === 'first,second'")
        assert not await page.evaluate(text("#curves", "digits.1"))
    assert [problem for problem in page.problems if "stream" not in problem] == []


async def shows_everything(page: Page) -> None:
    await page.until(text("#job-message", EVIL))
    await page.until("document.querySelectorAll('#replicas tbody tr').length === 16")
    await page.until(text("#log", "zero"))
    await page.until(text("#log", EVIL))
    assert not await page.evaluate(text("#log", "harmless"))
    await page.evaluate("document.getElementById('every').click()")
    assert await page.evaluate(text("#log", "harmless"))
    assert await page.evaluate(text("#events", "none so far"))
    assert await page.evaluate("document.title") == "digits: Running"
    labels = await page.evaluate("[...document.querySelectorAll('svg')].map((svg) => svg.ariaLabel)")
    assert labels == ["loss at step 10: training 1", "accuracy at step 10: training 50 %"]


async def shows_what_has_changed(page: Page) -> None:
    await page.until(text("#events", EVIL))
    await page.until(text("#facts", "20 of 100"))
    await page.until(text("#curves", "training 87.5 %"))
    assert (
        await page.evaluate("document.querySelector('#curves path').getAttribute('d')")
        == "M26.4 6.0L294.0 87.0"
    )
    await page.until(text("#log", "two"))
    assert await page.evaluate("document.querySelectorAll('img, script:not([src])').length") == 0
    await page.evaluate("document.querySelector('#curves svg').focus()")
    await page.press("ArrowLeft")
    await page.until(text("#curves", "training 1 at 10"))
    select = "const select = document.getElementById('replica'); select.value = 'worker-1'"
    await page.evaluate(f"{select}; select.dispatchEvent(new Event('change'))")
    await page.until(f"{text('#log', 'two')} && !{text('#log', 'zero')}")


async def fits(page: Page) -> None:
    """Nothing is cut off, on narrow windows either, and colours follow the user's wish."""
    background = "getComputedStyle(document.body).backgroundColor"
    light = await page.evaluate(background)
    await page.look(1280, 900, dark=True)
    assert await page.evaluate(background) != light
    assert (await page.picture()).startswith(b"\x89PNG")
    for width in (1280, 900, 400):
        await page.look(width, 800)
        assert await page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
