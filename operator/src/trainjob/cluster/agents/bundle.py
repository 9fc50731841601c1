"""The bundle of every pod with an agent: agent and trainer library in one zip, or a folder of this machine.

The trainer is another package: the controller finds and copies its code, and never imports or runs it.
"""

from __future__ import annotations

import importlib.util
import io
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from trainjob.api import ObjectMeta
from trainjob.core.agent import PROGRAM, TOKEN, AgentSource, agent_source
from trainjob.core.settings import Bundle

PACKAGE = "trainjob_trainer"

_MAIN = f"""\
import sys

from {PACKAGE}.agent.main import main

sys.exit(main())
"""

_EARLIEST = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can hold, so that the same files always make the same bytes."""

_READABLE = 0o100644 << 16
_UNIX = 3


class BundleMissing(Exception):
    """The package trainjob-trainer is not installed beside this one."""


def build_bundle() -> bytes:
    """Return the zip, which is the same for the same version of the trainer.

    Raises:
        BundleMissing: the trainer is not installed.
    """
    package = find_package()
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        _add(archive, "__main__.py", _MAIN.encode())
        for source in _sources(package):
            name = (Path(PACKAGE) / source.relative_to(package)).as_posix()
            _add(archive, name, source.read_bytes())
    return zipped.getvalue()


def preview_source(meta: ObjectMeta) -> AgentSource | None:
    """Return the source of a job's agents, as far as it is known without the controller's key.

    The program is that of this installation; a controller gives the Secret another name. None: no trainer is
    installed here.
    """
    try:
        bundle = Bundle(build_bundle(), key=b"")
    except BundleMissing:
        return None
    return replace(agent_source(meta, bundle), token_digest="")


def lay_out(folder: Path, token: str) -> None:
    """Create the files of the bundle's volume in `folder`, for processes of this machine.

    The program is a folder here, which Python runs like a zip. The library is a link to the installed one, so
    that its compiled files are kept from run to run.

    Raises:
        BundleMissing: the trainer is not installed.
        OSError: the files can't be written.
    """
    package = find_package()
    program = folder / PROGRAM
    program.mkdir(parents=True)
    (program / "__main__.py").write_text(_MAIN)
    (program / PACKAGE).symlink_to(package, target_is_directory=True)
    secret = folder / TOKEN
    secret.touch(mode=0o600)
    secret.write_text(token)


def find_package() -> Path:
    """Return the folder of the installed trainer.

    Raises:
        BundleMissing: it is not installed, or not as files.
    """
    spec = importlib.util.find_spec(PACKAGE)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(location)
        if (folder / "__init__.py").is_file():
            return folder.absolute()
    raise BundleMissing("the package trainjob-trainer is not installed: install it beside trainjob")


def _sources(package: Path) -> Iterator[Path]:
    yield from sorted(package.rglob("*.py"), key=lambda path: path.relative_to(package).parts)


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    entry = zipfile.ZipInfo(name, _EARLIEST)
    entry.create_system = _UNIX
    entry.external_attr = _READABLE
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, content, compresslevel=9)
