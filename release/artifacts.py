"""Everything that a release publishes but the images, built into one folder.

    python release/artifacts.py dist --operator sha256:...

The release workflow publishes what this command writes, and tests/release checks it:

    python/              wheels and sdists of both packages
    trainjob-V.tgz       the chart, packed by Helm; it names the operator's image by digest
    kubectl-trainjob.tar.gz, trainjob.yaml   the kubectl plugin and its krew manifest
    *.cdx.json           what each package brings along, as CycloneDX
    SHA256SUMS           of all of these
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import click
import yaml

from versions import ROOT, read_version

# Which extras an SBOM covers: all that the package may bring along, with TensorFlow for CPUs.
EXTRAS = {"trainjob": ("controller",), "trainjob-trainer": ("cpu",)}
REPOSITORY = "trainjob/trainjob"
PLUGIN = "kubectl-trainjob"
ANNOTATION = "trainjob.dev/operator"
HASHED = ("--build-constraints", ROOT / "build-tools.txt", "--require-hashes")


def build(folder: Path, *, operator: str, uv: Path, helm: Path, repository: str = REPOSITORY) -> None:
    """Build everything into an empty folder.

    Args:
        folder: is created; must be empty.
        operator: the digest of the operator's image that was tested: `sha256:` and 64 hexadecimal digits.
        uv: the program.
        helm: the program, version 3 or 4.
        repository: where the release can be downloaded: OWNER/NAME on GitHub.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise click.UsageError(f"{folder} is not empty: an older build could be published with this one")
    version = read_version()
    build_packages(folder / "python", uv)
    with tempfile.TemporaryDirectory() as copy:
        chart = shutil.copytree(ROOT / "charts/trainjob", Path(copy, "trainjob"))
        described = chart / "Chart.yaml"
        described.write_text(name_image(described.read_text(), operator))
        _run(helm, "package", chart, "--destination", folder)
    for package, extras in EXTRAS.items():
        (folder / f"{package}.cdx.json").write_text(build_sbom(package, extras, uv))
    archive = pack_plugin(version)
    (folder / f"{PLUGIN}.tar.gz").write_bytes(archive)
    uri = f"https://github.com/{repository}/releases/download/v{version}/{PLUGIN}.tar.gz"
    manifest = krew_manifest(version, uri, hashlib.sha256(archive).hexdigest(), repository)
    (folder / "trainjob.yaml").write_text(yaml.safe_dump(manifest, sort_keys=False, width=110))
    (folder / "SHA256SUMS").write_text(sum_up(folder))


def name_image(described: str, digest: str) -> str:
    """Return Chart.yaml with the digest of the operator's image: `trainjob.image` takes it from there."""
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise click.UsageError(f"{digest!r} is no digest of an image: sha256: and 64 hexadecimal digits")
    image = re.compile(r"^( +image: (.+/operator))(:[\d.]+)$", re.MULTILINE)
    (found,) = image.finditer(described)
    named = image.sub(rf"\1\3@{digest}", described)
    return named.replace("\nannotations:\n", f"\nannotations:\n  {ANNOTATION}: {found[2]}@{digest}\n", 1)


def sum_up(folder: Path) -> str:
    """Return the SHA-256 of every file, as `sha256sum --check` reads them."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    sums = ((hashlib.sha256(file.read_bytes()).hexdigest(), file.relative_to(folder)) for file in files)
    return "".join(f"{checksum}  {name}\n" for checksum, name in sums)


def build_packages(folder: Path, uv: Path) -> None:
    """Build each package's sdist, and from that its wheel."""
    for package in ("trainer", "operator"):
        _run(uv, "build", "--quiet", "--no-create-gitignore", *HASHED, "--out-dir", folder, ROOT / package)


def build_sbom(package: str, extras: tuple[str, ...], uv: Path) -> str:
    """Return what a package brings along by the lock file, as CycloneDX, the same each time."""
    words = [word for extra in extras for word in ("--extra", extra)]
    form = ("--format", "cyclonedx1.5", "--preview-features", "sbom-export")
    answer = _run(uv, "export", "--quiet", "--frozen", "--no-dev", *form, "--package", package, *words)
    content: dict[str, Any] = json.loads(answer)
    del content["serialNumber"], content["metadata"]["timestamp"]
    return json.dumps(content, indent=1) + "\n"


def pack_plugin(version: str) -> bytes:
    """Return the archive with the plugin and its licence, the same each time."""
    script = (ROOT / "release" / PLUGIN).read_text().replace("version=0.0.0", f"version={version}")
    packed = io.BytesIO()
    # gzip writes the time into its head; xz and bz2 are what krew doesn't read.
    with tarfile.open(fileobj=packed, mode="w") as archive:
        _add(archive, PLUGIN, script.encode(), 0o755)
        _add(archive, "LICENSE", (ROOT / "LICENSE").read_bytes(), 0o644)
    return gzip.compress(packed.getvalue(), mtime=0)


def krew_manifest(version: str, uri: str, checksum: str, repository: str) -> dict[str, Any]:
    """Return the plugin's manifest for krew: one archive for Linux and macOS."""
    systems = {"key": "os", "operator": "In", "values": ["linux", "darwin"]}
    return {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "trainjob"},
        "spec": {
            "version": f"v{version}",
            "homepage": f"https://github.com/{repository}",
            "shortDescription": "Run and watch distributed TensorFlow jobs",
            "description": "Submits TrainJobs, shows their state, logs and figures, and trains the same\n"
            "files on this machine.\n",
            "caveats": "The plugin runs the Python package `trainjob`. Install it (pip install trainjob),\n"
            "or have uv or pipx on PATH, which fetch it.\n",
            "platforms": [
                {
                    "selector": {"matchExpressions": [systems]},
                    "uri": uri,
                    "sha256": checksum,
                    "bin": PLUGIN,
                    "files": [{"from": "*", "to": "."}],
                }
            ],
        },
    }


def find_uv() -> Path:
    """Return the uv of this machine, or the one that the Makefile installs."""
    return Path(shutil.which("uv") or ROOT / ".uv/bin/uv")


def _add(archive: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    archive.addfile(entry, io.BytesIO(content))


def _run(program: Path, *arguments: str | Path) -> str:
    command = [program, *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE).stdout


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option("--operator", required=True, help="The digest of the operator's image: sha256:...")
@click.option("--helm", type=click.Path(path_type=Path), default=Path("helm"), help="Helm 3 or 4.")
@click.option(
    "--repository", default=REPOSITORY, show_default=True, help="Where the release is downloaded from."
)
def main(folder: Path, operator: str, helm: Path, repository: str) -> None:
    """Build a release into FOLDER."""
    build(folder.resolve(), operator=operator, uv=find_uv(), helm=helm, repository=repository)


if __name__ == "__main__":
    main()
