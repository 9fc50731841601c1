"""The bundle of every pod with an agent: agent and trainer library in one zip, or a folder of this machine.

The controller copies the trainer's code, and imports nothing of it but the contract that both share.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import replace
from pathlib import Path

from trainjob.api import ObjectMeta
from trainjob.core.agent import PROGRAM, AgentSource, agent_source
from trainjob.core.settings import Bundle
from trainjob_trainer import contract
from trainjob_trainer.contract.files import TOKEN

PACKAGE = Path(contract.__file__).absolute().parents[1]
"""The folder of the installed trainer."""

_MAIN = f"""\
import sys

from {PACKAGE.name}.agent.main import main

sys.exit(main())
"""

_EARLIEST = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can hold, so that the same files always make the same bytes."""

_READABLE = 0o100644 << 16
_UNIX = 3


def build_bundle() -> bytes:
    """Return the zip, which is the same for the same version of the trainer."""
    files = {"__main__.py": _MAIN.encode()}
    for source in sorted(PACKAGE.rglob("*.py"), key=lambda path: path.relative_to(PACKAGE).parts):
        files[source.relative_to(PACKAGE.parent).as_posix()] = source.read_bytes()
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name, _EARLIEST)
            entry.create_system = _UNIX
            entry.external_attr = _READABLE
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED, 9)
    return zipped.getvalue()


def preview_source(meta: ObjectMeta) -> AgentSource:
    """Return the source of a job's agents, as far as it is known without the controller's key.

    The program is that of this installation; a controller gives the Secret another name.
    """
    return replace(agent_source(meta, Bundle(build_bundle(), key=b"")), token_digest="")


def lay_out(folder: Path, token: str) -> None:
    """Create the files of the bundle's volume in `folder`, for processes of this machine.

    The program is a folder here, which Python runs like a zip. The library is a link to the installed one, so
    that its compiled files are kept from run to run. OSError: the files can't be written.
    """
    program = folder / PROGRAM
    program.mkdir(parents=True)
    (program / "__main__.py").write_text(_MAIN)
    (program / PACKAGE.name).symlink_to(PACKAGE, target_is_directory=True)
    secret = folder / TOKEN
    secret.touch(mode=0o600)
    secret.write_text(token)
