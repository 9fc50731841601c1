"""A headless Chromium with one page, driven by the DevTools protocol, for tests of pages and for pictures."""

import asyncio
import base64
import json
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from testbed.debian import unpacked
from testbed.errors import TestbedError

GUARD_SECONDS = 60.0
"""Against hanging only."""

OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # root has none; only pages of this machine are opened
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-sync",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    "--remote-debugging-port=0",
)
FONTS = """<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <dir>{files}/usr/share/fonts</dir>
  <dir>/usr/share/fonts</dir>
  <cachedir>{cache}</cachedir>
  <alias binding="strong"><family>sans-serif</family><prefer><family>Inter</family></prefer></alias>
  <alias binding="strong"><family>system-ui</family><prefer><family>Inter</family></prefer></alias>
  <alias binding="strong"><family>monospace</family><prefer><family>DejaVu Sans Mono</family></prefer></alias>
</fontconfig>
"""


class Page:
    """The page of a browser.

    Attributes:
        problems: what its console has reported: errors of scripts, and what its rules of content refused.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._calls = 0
        self.problems: list[str] = []

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a method of the protocol.

        Raises:
            TestbedError: The browser refuses it.
        """
        self._calls += 1
        await self._socket.send_json({"id": self._calls, "method": method, "params": parameters})
        async with asyncio.timeout(GUARD_SECONDS):
            while (said := json.loads(await self._socket.receive_str())).get("id") != self._calls:
                self._note(said)
        if "error" in said:
            raise TestbedError(f"{method}: {said['error'].get('message')}")
        result: dict[str, Any] = said["result"]
        return result

    async def open(self, url: str) -> None:
        """Goes to an address."""
        for part in ("Page", "Runtime", "Log"):
            await self.call(f"{part}.enable")
        await self.call("Page.navigate", url=url)

    async def evaluate(self, script: str) -> Any:
        """The value of an expression, or of the promise that it is.

        Raises:
            TestbedError: It throws.
        """
        said = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in said:
            raise TestbedError(f"{script}: {said['exceptionDetails']}")
        return said["result"].get("value")

    async def until(self, script: str) -> None:
        """Waits until an expression is true.

        Raises:
            TestbedError: It doesn't become true; with the text of the page.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(GUARD_SECONDS):
                while True:
                    with suppress(TestbedError):  # the page is being loaded
                        if await self.evaluate(f"Boolean({script})"):
                            return
                    await asyncio.sleep(0.05)
        text = await self.evaluate("document.body.innerText")
        raise TestbedError(f"never true: {script}\n{self.problems}\n{text}")

    async def press(self, key: str) -> None:
        """Presses a key."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    async def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """Sets the size of the window, and whether the user prefers dark colours."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self) -> bytes:
        """What the window shows, as PNG."""
        said = await self.call("Page.captureScreenshot", format="png")
        return base64.b64decode(said["data"])

    def _note(self, said: dict[str, Any]) -> None:
        match said:
            case {"method": "Runtime.exceptionThrown", "params": {"exceptionDetails": details}}:
                self.problems.append(str(details.get("exception", details)))
            case {"method": "Log.entryAdded", "params": {"entry": {"level": "error"} as entry}}:
                self.problems.append(f"{entry.get('text')} {entry.get('url', '')}")


@asynccontextmanager
async def open_page() -> AsyncGenerator[Page]:
    """An empty page of a browser that lives as long as the context.

    Raises:
        Unfit: There is no Chromium for this machine.
        TestbedError: The browser doesn't start.
    """
    program, files = await asyncio.to_thread(_program)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        profile = Path(folder) / "profile"
        log = Path(folder) / "log"
        with log.open("wb") as said:
            browser = await asyncio.create_subprocess_exec(
                "setpriv", "--pdeathsig", "KILL", "--",
                program, *OPTIONS, f"--user-data-dir={profile}", "about:blank",
                env={**os.environ, **_environment(files, Path(folder))},
                stdin=asyncio.subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
            )  # fmt: skip
        try:
            port = await _port(browser, profile, log)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    pages = [each for each in await answer.json() if each["type"] == "page"]
                address = pages[0]["webSocketDebuggerUrl"]
                async with session.ws_connect(address, max_msg_size=0) as socket:
                    yield Page(socket)
        finally:
            with suppress(ProcessLookupError):
                browser.kill()
            await browser.wait()


def _program() -> tuple[Path, Path]:
    """The browser and the root of its files: Debian's, or the machine's own where apt has none (Ubuntu)."""
    try:
        program = unpacked("chromium")
    except TestbedError:
        own = shutil.which("chromium") or shutil.which("google-chrome")
        if not own:
            raise
        return Path(own), Path("/")
    return program, program.parents[3]


async def _port(browser: asyncio.subprocess.Process, profile: Path, log: Path) -> int:
    """Where the browser listens: it writes that into a file once it does."""
    with suppress(TimeoutError):
        async with asyncio.timeout(GUARD_SECONDS):
            while browser.returncode is None:
                with suppress(OSError):
                    port, end, _ = (profile / "DevToolsActivePort").read_text().partition("\n")
                    if end:  # else it is still being written
                        return int(port)
                await asyncio.sleep(0.05)
    raise TestbedError(f"Chromium has not started:\n{log.read_text(errors='replace')[-2000:]}")  # noqa: ASYNC240


def _environment(files: Path, folder: Path) -> dict[str, str]:
    """Where it finds its libraries and its fonts; it writes nothing outside the folder."""
    libraries = [*files.glob("usr/lib/*-linux-gnu"), *files.glob("lib/*-linux-gnu")]
    libraries += [each / "pulseaudio" for each in libraries]
    fonts = folder / "fonts.conf"
    fonts.write_text(FONTS.format(files=files, cache=folder / "fonts"))
    return {
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries)),
        "FONTCONFIG_FILE": str(fonts),
        "HOME": str(folder),
        "DBUS_SESSION_BUS_ADDRESS": "disabled:",
    }
