"""OCI images on disk (the image layout of the OCI image specification), and their way into containerd."""

import contextlib
import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import IO, Any

from testbed.containerd import Client

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
NAME = "org.opencontainers.image.ref.name"


class Layout:
    """A folder of images that share their layers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def entry(self, image: str) -> dict[str, Any] | None:
        """The descriptor of an image's manifest; None if the image isn't in the layout."""
        try:
            index = json.loads((self.folder / "index.json").read_text())
        except OSError:
            return None
        found = [each for each in index["manifests"] if each.get("annotations", {}).get(NAME) == image]
        return found[-1] if found else None

    def blobs(self, image: str) -> list[str]:
        """The digests of all that an image consists of: layers, configuration and, last, the manifest."""
        entry = self.entry(image)
        assert entry, f"{image} is not in {self.folder}"
        manifest = json.loads(self.blob(entry["digest"]).read_bytes())
        parts = [*manifest["layers"], manifest["config"], entry]
        return list(dict.fromkeys(part["digest"] for part in parts))

    def blob(self, digest: str) -> Path:
        return self.folder / "blobs" / digest.replace(":", "/")

    def forget_unused(self, images: list[str]) -> None:
        """Deletes every image but these, and the blobs that none of these needs."""
        kept = [image for image in images if self.entry(image)]
        entries = [self.entry(image) for image in kept]
        wanted = {digest for image in kept for digest in self.blobs(image)}
        (self.folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))
        for file in (self.folder / "blobs" / "sha256").iterdir():
            if f"sha256:{file.name}" not in wanted:
                file.unlink()

    def send(self, image: str, client: Client) -> None:
        """Imports an image into containerd, without the layers that it already has."""
        there = set(client.call("content", "ls", "--quiet").split())
        missing = [digest for digest in self.blobs(image)[:-1] if digest not in there] + self.blobs(image)[
            -1:
        ]
        with client.importing() as process:
            assert process.stdin
            with contextlib.suppress(BrokenPipeError):  # then it says why itself
                self._write(process.stdin, [image], missing)

    def archive(self, images: list[str], file: Path) -> None:
        """Writes images to an archive that containerd imports."""
        unfinished = file.with_name(f".{file.name}")
        with unfinished.open("wb") as target:
            blobs = dict.fromkeys(digest for image in images for digest in self.blobs(image))
            self._write(target, images, list(blobs))
        unfinished.rename(file)

    def _write(self, target: IO[bytes], images: list[str], blobs: list[str]) -> None:
        entries = [
            {**(self.entry(image) or {}), "annotations": {"io.containerd.image.name": image}}
            for image in images
        ]
        with tarfile.open(fileobj=target, mode="w|") as archive:
            _add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
            _add(archive, "index.json", json.dumps({"schemaVersion": 2, "manifests": entries}).encode())
            for digest in blobs:
                archive.add(self.blob(digest), f"blobs/{digest.replace(':', '/')}")

    def write_static(self, image: str, program: Path, architecture: str, *, folder: str = "",
                     user: str = "65535") -> None:  # fmt: skip
        """Writes an image that consists of one static program, in a folder of it."""
        layer = io.BytesIO()
        path = f"{folder}/{program.name}".strip("/")
        with tarfile.open(fileobj=layer, mode="w") as archive:
            _add(archive, path, program.read_bytes(), mode=0o755)
        layer_entry = self._put(layer.getvalue(), "application/vnd.oci.image.layer.v1.tar")
        config = {
            "architecture": architecture, "os": "linux",
            "config": {"Entrypoint": [f"/{path}"], "User": user},
            "rootfs": {"type": "layers", "diff_ids": [layer_entry["digest"]]},
        }  # fmt: skip
        config_entry = self._put(json.dumps(config).encode(), "application/vnd.oci.image.config.v1+json")
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config_entry,
            "layers": [layer_entry],
        }
        entry = {**self._put(json.dumps(manifest).encode(), MANIFEST), "annotations": {NAME: image}}
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        (self.folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))

    def _put(self, content: bytes, media_type: str) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.blob(digest).parent.mkdir(parents=True, exist_ok=True)
        self.blob(digest).write_bytes(content)
        return {"mediaType": media_type, "digest": digest, "size": len(content)}


def _add(archive: tarfile.TarFile, name: str, content: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    entry.mode = mode
    archive.addfile(entry, io.BytesIO(content))
