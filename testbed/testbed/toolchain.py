"""The Go that builds the programs: the machine's own where it is new enough, else a pinned one.

The pinned one is a zip of Go's own module proxy (or of whichever GOPROXY names), so that a machine which can
download modules can download Go.
"""

import hashlib
import os
import platform
import re
import shutil
import urllib.request
import zipfile
from pathlib import Path

from testbed.commands import run
from testbed.errors import TestbedError, Unfit
from testbed.places import GO_MODULES, cache
from testbed.progress import step

VERSION = "1.26.11"
SHA256 = {
    "amd64": "e1edb778de0aa08c8e827f5a873b35a46afe680fb241482c531725b2355e470d",
    "arm64": "4d31d22f75fed99025f7b082319eabeb74106d11e343fc203b336ba2afdeb3a1",
}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def architecture() -> str:
    """This machine's processor, in Go's words.

    Raises:
        Unfit: It is none that the pinned programs exist for.
    """
    try:
        return ARCHITECTURES[platform.machine()]
    except KeyError:
        raise Unfit(f"the test cluster runs on x86_64 and aarch64, not on {platform.machine()}") from None


def go() -> Path:
    """A Go that can build every module of the test cluster; downloaded if there is none."""
    found = shutil.which("go")
    if found and _version(Path(found)) >= _needed():
        return Path(found)
    folder = cache() / f"go{VERSION}"
    if not folder.exists():
        with step(f"Go {VERSION} (this machine has {'an older one' if found else 'none'})"):
            _download(folder)
    return folder / "bin" / "go"


def _needed() -> tuple[int, ...]:
    lines = [re.search(r"^go (\S+)$", file.read_text(), re.MULTILINE) for file in GO_MODULES.glob("*/go.mod")]
    return max(_numbers(line[1]) for line in lines if line)


def _version(program: Path) -> tuple[int, ...]:
    try:
        said = run([program, "env", "GOVERSION"], env={"GOTOOLCHAIN": "local"})
    except TestbedError:
        return (0,)
    return _numbers(said)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def _download(folder: Path) -> None:
    name = f"v0.0.1-go{VERSION}.linux-{architecture()}"
    archive = folder.with_name(f"{folder.name}.zip")
    folder.parent.mkdir(parents=True, exist_ok=True)
    url = f"{_proxy()}/golang.org/toolchain/@v/{name}.zip"
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, archive.open("wb") as file:  # noqa: S310
            shutil.copyfileobj(answer, file)
    except OSError as error:
        raise TestbedError(f"{url}: {error}; install Go {VERSION} or newer, or set GOPROXY") from error
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256[architecture()]:
        raise TestbedError(f"{url} has the checksum {found}, not the pinned one")
    unpacked = folder.with_name(f"{folder.name}.unpacking")
    shutil.rmtree(unpacked, ignore_errors=True)
    with zipfile.ZipFile(archive) as content:
        content.extractall(unpacked)
    archive.unlink()
    root = unpacked / "golang.org" / f"toolchain@{name}"
    for program in [*root.glob("bin/*"), *root.glob("pkg/tool/*/*")]:
        program.chmod(0o755)  # a module zip carries no modes
    root.rename(folder)
    shutil.rmtree(unpacked)


def _proxy() -> str:
    for proxy in re.split("[,|]", os.environ.get("GOPROXY") or "https://proxy.golang.org"):
        if proxy.startswith(("https://", "http://", "file://")):
            return proxy.rstrip("/")
    return "https://proxy.golang.org"
