"""The version of a release: one number for both packages, the chart and the images.

It is read from operator/pyproject.toml; PLACES lists the files that repeat it.

    python release/versions.py set 0.2.0     write it everywhere, and give the changelog a section for it
    python release/versions.py notes v0.2.0  print that section, if the tag fits the version
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[1]
SOURCE = "operator/pyproject.toml"
_NUMBER = r"\d+\.\d+\.\d+"

# What stands before the version in each file. The generated CRD and uv.lock follow by their own commands.
PLACES: dict[str, tuple[str, ...]] = {
    SOURCE: ('\nversion = "',),
    "trainer/pyproject.toml": ('\nversion = "',),
    "charts/trainjob/Chart.yaml": ("\nversion: ", '\nappVersion: "', "/operator:"),
    "Dockerfile": ("\nARG VERSION=",),
    "examples/Dockerfile": ("/trainer:",),
    "manifests/base/kustomization.yaml": ("app.kubernetes.io/version: ", "newTag: "),
    "manifests/overlays/one-namespace/kustomization.yaml": ("app.kubernetes.io/version: ",),
    "manifests/overlays/kueue/kustomization.yaml": ("app.kubernetes.io/version: ",),
    "manifests/overlays/gangs/kustomization.yaml": ("app.kubernetes.io/version: ",),
    "docs/cli.md": ("trainjob     ", "CRD          ", "controller   "),
    "docs/cluster.md": ("/operator:", "/trainer:"),
    "docs/images.md": ("/operator:", "/trainer:"),
    "docs/versions.md": ("The version is ",),
}
CHANGELOG = "CHANGELOG.md"
# Sentences that the first release makes untrue.
UNPUBLISHED = re.compile(r"nothing is published yet|no release (?:is published|has been made) yet", re.I)
TELLING = ("README.md", "CONTRIBUTING.md", "docs/install.md", "docs/versions.md")


def read_version(root: Path = ROOT) -> str:
    """Return the version of the packages."""
    (found,) = versions_in((root / SOURCE).read_text(), PLACES[SOURCE])
    return found


def versions_in(text: str, before: tuple[str, ...]) -> list[str]:
    """Return every version that follows one of these words.

    Raises:
        ValueError: one of the words is followed by no version.
    """
    found = {word: re.findall(re.escape(word) + f"({_NUMBER})", text) for word in before}
    missing = [word.strip() for word, versions in found.items() if not versions]
    if missing:
        raise ValueError(f"no version follows {missing}")
    return [version for versions in found.values() for version in versions]


def replace_version(text: str, before: tuple[str, ...], version: str) -> str:
    """Return the text with this version after each of these words."""
    versions_in(text, before)
    words = "|".join(map(re.escape, before))
    return re.sub(f"({words}){_NUMBER}", lambda match: match[1] + version, text)


def trainer_bounds(version: str) -> str:
    """Return which trainjob-trainer this version of trainjob works with: that of the same minor version."""
    major, minor, _ = map(int, version.split("."))
    return f"trainjob-trainer>={major}.{minor},<{major}.{minor + 1}"


def open_section(changelog: str, version: str, day: date) -> str:
    """Return the changelog with what is unreleased under the version; one that is there already stays."""
    if f"\n## {version} " in changelog:
        return changelog
    return changelog.replace("\n## Unreleased\n", f"\n## Unreleased\n\n## {version} ({day})\n", 1)


def read_notes(changelog: str, version: str) -> str:
    """Return the changelog's section of a version.

    Raises:
        LookupError: it has none, or an empty one.
    """
    found = re.search(rf"^## {re.escape(version)} \([^)]*\)\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    if found is None or not found[1].strip():
        raise LookupError(f"{CHANGELOG} has no section {version}: `make version NEW={version}` makes it")
    return found[1].strip() + "\n"


def denials(root: Path = ROOT) -> list[str]:
    """Return the pages that say that nothing is published."""
    return [name for name in TELLING if UNPUBLISHED.search(" ".join((root / name).read_text().split()))]


def write_version(version: str, day: date, root: Path = ROOT) -> None:
    """Write the version into all places."""
    for name, before in PLACES.items():
        file = root / name
        text = replace_version(file.read_text(), before, version)
        if name == SOURCE:
            text = re.sub(r"trainjob-trainer>=[\d.]+,<[\d.]+", trainer_bounds(version), text)
        file.write_text(text)
    file = root / CHANGELOG
    file.write_text(open_section(file.read_text(), version, day))


@click.group()
def main() -> None:
    """Read and write the version of a release."""


@main.command("set")
@click.argument("version")
def set_(version: str) -> None:
    """Write VERSION everywhere; `make version` also updates what is generated."""
    if not re.fullmatch(_NUMBER, version):
        raise click.UsageError(f"{version!r} is no version: write three numbers, such as 0.2.0")
    write_version(version, datetime.now(UTC).date())


@main.command()
@click.argument("tag")
def notes(tag: str) -> None:
    """Print the changelog's section for TAG."""
    version = read_version()
    if tag != f"v{version}":
        raise click.ClickException(
            f"the tag {tag} is not v{version}, the version of the packages: "
            "`make version` sets it, then tag the commit"
        )
    if pages := denials():
        raise click.ClickException(
            f"{', '.join(pages)}: says that nothing is published yet: correct that before the tag"
        )
    try:
        click.echo(read_notes((ROOT / CHANGELOG).read_text(), version), nl=False)
    except LookupError as error:
        raise click.ClickException(str(error.args[0])) from error


if __name__ == "__main__":
    main()
