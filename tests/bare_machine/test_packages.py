"""What the testbed unpacks from Debian doesn't depend on what is installed on the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from testbed import TestbedError, Unfit, browser, debian

DEPENDS = {
    "chromium": ["chromium-common", "libnss3", "libc6"],
    "chromium-common": ["libc6"],
    "libnss3": ["libc6"],
    "docker.io": ["runc", "libc6"],
}
APT = f"""#!{sys.executable}
import os, pathlib, sys
depends, words = {DEPENDS}, sys.argv[1:]
settings = dict(word.removeprefix("--option=").split("=") for word in words if "::" in word or "Dir" in word)
names = [word for word in words if word[0] != "-" and "=" not in word][1:]
to, wanted = pathlib.Path(), set(names)
if "install" in words:
    to = pathlib.Path(settings.get("Dir::Cache::archives") or settings["Dir::Cache"] + "/archives")
    status = pathlib.Path(settings.get("Dir::State::status", os.environ["INSTALLED"]))
    installed = set(status.read_text().split())
    wanted, more = set(names) - (set() if "--reinstall" in words else installed), names
    while more := [each for name in more for each in depends.get(name, ())]:
        wanted |= set(more) - installed
for name in wanted:
    (to / f"{{name}}_1_amd64.deb").write_text(name)
"""
DPKG_DEB = """#!/bin/sh
read -r name <"$2"; mkdir -p "$3/usr" && touch "$3/usr/$name"
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an apt of six packages; the file that is returned names those that are installed."""
    for name, text in (("apt-get", APT), ("dpkg-deb", DPKG_DEB)):
        (tmp_path / "bin" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    installed = tmp_path / "installed"
    installed.touch()
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("INSTALLED", str(installed))
    monkeypatch.setenv("TRAINJOB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(debian, "NEEDED", {})
    return installed


def unpack(name: str) -> list[str]:
    root = Path(str(debian.unpacked(name)).removesuffix(debian.UNPACKED[name][1]))
    packages = sorted(file.name for file in (root / "usr").iterdir())
    shutil.rmtree(root)
    return packages


@pytest.mark.parametrize("name", debian.UNPACKED)
def test_the_same_is_unpacked_whatever_is_installed(name: str, machine: Path) -> None:
    package, _ = debian.UNPACKED[name]
    dependencies = [each for each in DEPENDS.get(package, ()) if package in debian.WITH_LIBRARIES]
    wanted = {*debian.WITH_LIBRARIES.get(package, (package,)), *dependencies} - {"libc6"}
    everything = [*DEPENDS, *(each for names in DEPENDS.values() for each in names), package]
    for installed in ([], ["libc6"], ["libnss3"], [package], ["chromium-common"], everything):
        machine.write_text("\n".join(installed))
        assert unpack(name) == sorted(wanted), installed


def test_what_an_earlier_version_unpacked_is_not_taken_for_it(machine: Path) -> None:
    old = machine.parent / "cache" / "debian" / "chromium"
    (old / "usr").mkdir(parents=True)
    assert "chromium-common" in unpack("chromium")
    assert not old.exists()


@pytest.mark.parametrize("own", ["chromium", "google-chrome"])
def test_where_apt_has_no_chromium_it_is_the_machines_own(
    own: str, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = machine.parent / "bin" / own
    monkeypatch.setenv("PATH", str(program.parent))
    (program.parent / "apt-get").write_text("#!/bin/sh\nexit 100\n")
    with pytest.raises(TestbedError, match="apt-get"):
        browser._program()
    program.write_text("")
    program.chmod(0o755)
    assert browser._program() == (program, Path("/"))


@pytest.mark.parametrize(
    ("name", "package"), [("no-such-program", "openssl"), ("libnone.so.1", "libseccomp2")]
)
def test_a_program_or_library_that_is_missing_is_installed(
    name: str, package: str, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setitem(debian.TOOLS, name, package)
    monkeypatch.setattr(debian, "_apt", lambda *words: asked.append(words))
    monkeypatch.setattr(debian.os, "geteuid", lambda: 0)
    debian.need_tools("unshare", "libc.so.6", name)
    assert asked == [("install", "--no-install-recommends", package)]


# The real ones.

LIBC = (
    "libc.so",
    "libm.so",
    "libpthread.so",
    "libdl.so",
    "librt.so",
    "libresolv.so",
    "linux-vdso.so",
    "ld-linux",
)


def libraries(program: Path, path: str = "") -> dict[str, str]:
    """All libraries that a program loads, and where the loader finds them."""
    done = subprocess.run(
        ["ldd", program],
        env={**os.environ, "LD_LIBRARY_PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line.split() for line in done.stdout.splitlines() if "statically" not in line]
    return {Path(words[0]).name: words[2] if "=>" in words else words[0] for words in lines}


@pytest.mark.parametrize("name", sorted(debian.UNPACKED.keys() - {"cni"}))
def test_a_program_takes_no_library_for_granted(name: str, tmp_path: Path) -> None:
    try:
        program, root = browser._program() if name == "chromium" else (debian.unpacked(name), tmp_path)
    except Unfit as unfit:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(str(unfit))
    loaded = libraries(program, browser._environment(root, tmp_path)["LD_LIBRARY_PATH"])
    needed = debian.NEEDED.get(name, ())
    installed = {*needed, *(each for library in needed for each in libraries(Path(loaded[library])))}
    for library, found in loaded.items():
        assert library.startswith(LIBC) or library in installed or found.startswith(str(root)), found
