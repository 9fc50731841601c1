"""The job's code: checked against its digest and unpacked before the training process starts."""

from __future__ import annotations

import hashlib
import io
import stat
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from trainjob_trainer.contract.files import CODE, LARGEST_CODE
from trainjob_trainer.errors import InvalidConfiguration, OutputUnwritable


@dataclass(frozen=True)
class Code:
    """A job's code.

    Attributes:
        archive: the mounted zip file.
        digest: the SHA-256 that it must have, in hex.
        folder: where its files go.
    """

    archive: Path
    digest: str
    folder: Path

    def unpack(self) -> None:
        """Write all files.

        Raises:
            InvalidConfiguration: it is another archive than the job's, or holds something else than files.
            OutputUnwritable: a file can't be read or written, perhaps only on this node.
        """
        try:
            content = self.archive.read_bytes()
            if hashlib.sha256(content).hexdigest() != self.digest:
                raise InvalidConfiguration(
                    f"{self.archive}: not the job's code (spec.code.digest): its ConfigMap was replaced;"
                    " delete the job and submit it again"
                )
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                entries = archive.infolist()
                self._check(entries)
                for entry in entries:
                    self._write(entry, archive.read(entry))
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError) as error:
            raise InvalidConfiguration(f"{self.archive}: can't be unpacked: {error}") from error
        except OSError as error:
            raise OutputUnwritable(f"the job's code can't be unpacked into {self.folder}: {error}") from error

    def _check(self, entries: list[zipfile.ZipInfo]) -> None:
        """Check everything before the first file is written."""
        if sum(entry.file_size for entry in entries) > LARGEST_CODE:
            raise InvalidConfiguration(f"{self.archive}: holds more than {LARGEST_CODE // 1_000_000} MB")
        for entry in entries:
            kind = stat.S_IFMT(entry.external_attr >> 16)
            parts = entry.filename.split("/")
            if any(part in ("", ".", "..") for part in parts) or kind not in (0, stat.S_IFREG):
                raise InvalidConfiguration(
                    f"{self.archive}: {entry.filename!r} is not a file below the code's folder; pack the "
                    "code with trainjob submit"
                )

    def _write(self, entry: zipfile.ZipInfo, content: bytes) -> None:
        path = self.folder / PurePosixPath(entry.filename)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        if entry.external_attr >> 16 & 0o111:
            path.chmod(0o755)


def read_code(value: Any, bundle: Path) -> Code | None:
    """Return the code that TRAINJOB_AGENT names, in the archive in `bundle`; None if it names none."""
    if not isinstance(value, Mapping):
        return None
    return Code(bundle / CODE, str(value.get("digest")), Path(str(value.get("folder"))))
