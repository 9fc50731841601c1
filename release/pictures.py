"""The pictures of the docs: `make pictures`, about six minutes.

Two examples are trained on this machine; the second training of the digits is shown while it goes on, after
one of its processes was killed: by the display of `trainjob run`, by the page of `trainjob ui`, and at its
end by TensorBoard. `boards.py` draws the dashboards. Pictures of pages need Debian's Chromium, which is
unpacked into the testbed's cache; the dashboards' control plane is built into it the first time (Linux).
"""

from __future__ import annotations

import asyncio
import html
import io
import json
import os
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import boards
from first_steps import cells_for_here
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from testbed.browser import Page, open_page
from testbed.ports import free_ports

from trainjob.cli.screen import draw
from trainjob.client.connection import ClusterOptions
from trainjob.client.job_logs import Wanted
from trainjob.client.log_lines import EqualLines, Line, is_shown
from trainjob.client.page import JobHistory
from trainjob.client.run_record import find_run
from trainjob.client.runs import LocalJob
from trainjob.client.view import JobView
from trainjob.client.web.live_jobs import LiveJobs
from trainjob.client.web.server import serve

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs/pictures"
PROGRAMS = Path(sys.executable).parent
LARGEST = 160_000
"""Bytes of one picture."""

COLUMNS = 92
EPOCHS = 120
KILLED_AT, SHOWN_AT = 0.12, 0.75
"""Parts of the training."""


# The display, as a terminal shows it.


# No picture of the docs loads anything: fonts are the reader's own.
_FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace(
    "Fira Code, monospace", "ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
)


def draw_display(job: JobView, history: JobHistory, lines: Iterable[Line], title: str) -> str:
    """Return the live display of a run as SVG.

    Args:
        job: its state.
        history: of its states so far, this one included.
        lines: the last ones of its logs.
        title: of the window.
    """
    console = Console(
        record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, legacy_windows=False
    )
    console.print(draw(job, history, lines, COLUMNS))
    return console.export_svg(title=title, code_format=_FORMAT, unique_id="display")


# A training, followed as people follow it.


@asynccontextmanager
async def started(folder: Path, *arguments: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """`trainjob run` in this folder; it is stopped at the end of the context, if it hasn't ended."""
    process = await asyncio.create_subprocess_exec(
        PROGRAMS / "trainjob", "run", *arguments, cwd=folder, stdout=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        await process.wait()


async def train(folder: Path, *arguments: str) -> None:
    """Train to the end."""
    async with started(folder, *arguments, "--plain") as process:
        if await process.wait():
            raise SystemExit(f"trainjob run {' '.join(arguments)} has failed")


async def find_job(name: str, process: asyncio.subprocess.Process) -> LocalJob:
    """Wait for the run of this process."""
    while True:
        run = find_run(name)
        if run is not None and run.record.pid == process.pid:
            return LocalJob(run)
        if process.returncode is not None:
            raise SystemExit(f"the run of {name} has ended before it began")
        await asyncio.sleep(0.1)


def kill_worker(folder: Path, index: int) -> None:
    """Kill the training process of a worker; its agent stays."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, KeyError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            pairs = (entry / "environ").read_text().split("\0")
            env = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
            task = json.loads(env["TF_CONFIG"])["task"]
            is_ours = env["TRAINJOB_OUTPUT_DIR"].startswith(str(folder)) and words[1] == b"digits.py"
            if is_ours and task == {"type": "worker", "index": index}:
                os.kill(int(entry.name), signal.SIGKILL)
                return
    raise SystemExit(f"worker {index} has no training process")


async def follow(folder: Path, job: LocalJob) -> str:
    """Follow the training past a killed process, and return the display as it is then."""
    history, lines, killed = JobHistory(), EqualLines(8), False
    reading = asyncio.ensure_future(_read(job, lines))
    try:
        async with aclosing(job.changes()) as changes:
            async for view in changes:
                history.observe(view)
                report = history.figures
                # A process that has just started again doesn't report the total yet.
                done = (report.step or 0) / report.total_steps if report.total_steps else 0.0
                if not killed and done > KILLED_AT and view.checkpoint_step:
                    killed = True
                    await asyncio.to_thread(kill_worker, folder, 1)
                is_back = any(" from step " in event.message for event in view.events)
                if killed and is_back and done > SHOWN_AT and view.evaluation is not None:
                    return draw_display(view, history, lines, "trainjob run digits.yaml")
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    raise SystemExit("the training has ended before it could be shown: raise EPOCHS")


async def _read(job: LocalJob, lines: EqualLines) -> None:
    loop = asyncio.get_running_loop()
    async with aclosing(job.log_lines(Wanted(), follow=True)) as found:
        async for replica, text in found:
            if is_shown(text):
                lines.add(replica, text, loop.time())


# Pages.


async def show_page(page: Page, address: str) -> bytes:
    """Return the page of `trainjob ui` with the training that goes on."""
    await page.look(1280, 960)
    await page.open(address)
    await page.until("document.querySelectorAll('#rows a').length > 2")
    await page.evaluate("document.querySelector('#rows a').click()")
    await page.until(
        "document.querySelectorAll('#curves path').length > 3 && document.querySelector('#log b')"
    )
    return await page.picture()


async def show_phone(page: Page) -> bytes:
    """Return the same page on a phone, in dark."""
    await page.look(390, 844, dark=True)
    await page.evaluate("scrollTo(0, document.querySelector('#job').getBoundingClientRect().top)")
    await page.evaluate("new Promise((done) => setTimeout(done, 1000))")
    return await page.picture()


async def show_notebook(page: Page, folder: Path) -> bytes:
    """Return what the cell of the example notebook shows that trains on this machine."""
    notebook = folder / "notebook.ipynb"
    notebook.write_text(json.dumps(cells_for_here()), encoding="utf-8")
    process = await asyncio.create_subprocess_exec(
        PROGRAMS / "jupyter", "execute", "--inplace", notebook.name
    )
    if await process.wait():
        raise SystemExit("the notebook has failed")
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    (cell,) = [cell for cell in cells if cell["cell_type"] == "code"][1:2]
    code = html.escape("".join(cell["source"]))
    shown = "".join("".join(output["data"]["text/html"]) for output in cell["outputs"] if "data" in output)
    document = folder / "notebook.html"
    style = "body{font:14px system-ui;margin:16px}.code{background:#f4f4f4;padding:8px}"
    text = f"<meta charset=utf-8><style>{style}</style><pre class=code>{code}</pre>{shown}"
    document.write_text(text, encoding="utf-8")
    await page.look(760, 390)
    await page.open(document.as_uri())
    await page.until("document.querySelectorAll('pre').length > 1")
    return await page.picture()


async def show_tensorboard(page: Page, output: Path) -> bytes:
    """Return TensorBoard's page with the curves of a run."""
    (port,) = free_ports(1)
    words = ("--logdir", str(output), "--host", "127.0.0.1", "--port", str(port), "--load_fast=false")
    server = await asyncio.create_subprocess_exec(
        PROGRAMS / "tensorboard", *words, stderr=asyncio.subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{port}/?smoothing=0&tagFilter=accuracy%7Closs#timeseries"
    try:
        await _until_it_answers(address)
        await page.look(1280, 640)
        await page.open(address)
        rows = "document.querySelectorAll('scalar-card tb-data-table-content-row').length"
        await page.until(f"{rows} >= 4")
        await page.evaluate("new Promise((done) => setTimeout(done, 2000))")  # it draws in the background
        return await page.picture()
    finally:
        server.kill()
        await server.wait()


async def _until_it_answers(address: str) -> None:
    async with aiohttp.ClientSession() as session:
        while True:
            with suppress(aiohttp.ClientError):
                async with session.get(address):
                    return
            await asyncio.sleep(0.5)


# All of them.


async def make(folder: Path) -> dict[str, bytes]:
    """Train in an empty folder, and return the pictures by name."""
    # No other run is seen, and no cluster.
    os.environ |= {"XDG_STATE_HOME": str(folder / "state"), "KUBECONFIG": str(folder / "none")}
    os.chdir(folder)  # paths are shown from here
    for name in ("digits.py", "digits.yaml", "mixed_precision.py", "mixed_precision.yaml"):
        shutil.copy(ROOT / "examples" / name, folder)
    await train(folder, "mixed_precision.yaml")
    await train(folder, "digits.yaml")
    jobs = LiveJobs(ClusterOptions())
    following = asyncio.ensure_future(jobs.run())
    output = folder / "runs/training/digits"
    try:
        async with open_page() as page:
            arguments = ("digits.yaml", "--fresh", "--plain", "--", "--epochs", str(EPOCHS))
            async with serve(jobs) as address, started(folder, *arguments) as process:
                display = await follow(folder, await find_job("digits", process))
                shown, phone = await show_page(page, address), await show_phone(page)
                await process.wait()
            board = await show_tensorboard(page, output)
            notebook = await show_notebook(page, folder)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    compare = ("compare", "digits.1", "digits", "--picture", "compare.svg")
    comparing = await asyncio.create_subprocess_exec(PROGRAMS / "trainjob", *compare)
    if await comparing.wait():
        raise SystemExit("the runs can't be compared")
    return {
        "display.svg": display.encode(),
        "page.png": shown,
        "page-phone.png": phone,
        "compare.svg": (folder / "compare.svg").read_bytes(),
        "notebook.png": notebook,
        "tensorboard.png": board,
    }


def main() -> None:
    """Write them into docs/pictures."""
    pictures = asyncio.run(boards.make())
    with tempfile.TemporaryDirectory(prefix="digits-") as folder:
        pictures |= asyncio.run(make(Path(folder)))
    PICTURES.mkdir(exist_ok=True)
    for name, content in pictures.items():
        if len(content) > LARGEST:
            raise SystemExit(f"{name} has {len(content)} bytes, and may have {LARGEST}")
        (PICTURES / name).write_bytes(content)
        print(f"docs/pictures/{name}: {len(content) // 1000} kB")


if __name__ == "__main__":
    main()
