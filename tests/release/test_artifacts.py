"""What `release/artifacts.py` writes, as people install it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import click
import pytest
import yaml
from artifacts import EXTRAS, HASHED, PLUGIN, build, find_uv, name_image
from packaging.metadata import Metadata
from testbed.programs import program

from versions import ROOT, read_version

pytestmark = pytest.mark.cluster
VERSION = read_version()
DIGEST = "sha256:" + "5e" * 32
SOURCES = {"trainjob": ROOT / "operator", "trainjob_trainer": ROOT / "trainer"}
JOB = """
apiVersion: trainjob.dev/v1alpha1
kind: TrainJob
metadata: {name: mine}
spec:
  worker: {replicas: 1}
  evaluator: {replicas: 0}
  output: {claim: {claimName: training}}
  template: {spec: {containers: [{name: trainer, image: any, command: [python, train.py]}]}}
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("release") / "dist"
    build(folder, operator=DIGEST, uv=find_uv(), helm=program("helm"))
    return folder


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that holds the wheels and what they ask for, by the lock file."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    env = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(folder)}
    words = ("--quiet", "--frozen", "--no-dev", "--package", "trainjob", "--no-install-workspace")
    subprocess.run([find_uv(), "sync", *words, "--python", sys.executable], cwd=ROOT, env=env, check=True)
    wheels = sorted((dist / "python").glob("*.whl"))
    install = (
        find_uv(),
        "pip",
        "install",
        "--quiet",
        "--offline",
        "--no-deps",
        "--python",
        folder / "bin/python",
    )
    subprocess.run([*install, *wheels], check=True)
    return folder / "bin"


def run(program: Path, *arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """As a person of this machine would, with nothing of the test's own environment."""
    env = {"PATH": f"{program.parent}:{os.defpath}", "HOME": str(cwd)}
    return subprocess.run(
        [program, *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=60
    )


def content(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_folder_holds_what_is_published(dist: Path) -> None:
    packages = {
        f"python/{name}-{VERSION}{end}" for name in SOURCES for end in (".tar.gz", "-py3-none-any.whl")
    }
    boms = {f"{name}.cdx.json" for name in EXTRAS}
    others = {f"trainjob-{VERSION}.tgz", f"{PLUGIN}.tar.gz", "trainjob.yaml", "SHA256SUMS"}
    files = {str(path.relative_to(dist)): path for path in dist.rglob("*") if path.is_file()}
    assert files.keys() == packages | boms | others
    sums = dict(reversed(line.split("  ")) for line in (dist / "SHA256SUMS").read_text().splitlines())
    assert sums == {
        name: hashlib.sha256(path.read_bytes()).hexdigest()
        for name, path in files.items()
        if name != "SHA256SUMS"
    }


@pytest.mark.parametrize("package", SOURCES)
def test_a_wheel_is_its_sources_and_valid_metadata(dist: Path, package: str) -> None:
    (wheel,) = (dist / "python").glob(f"{package}-*.whl")
    files = content(wheel)
    source = SOURCES[package] / "src" / package
    written = [path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    expected = {f"{package}/{path.relative_to(source)}": path.read_bytes() for path in written}
    about = f"{package}-{VERSION}.dist-info"
    assert {name: data for name, data in files.items() if not name.startswith(about)} == expected
    # The same rules as the package index has.
    metadata = Metadata.from_email(files[f"{about}/METADATA"], validate=True)
    assert str(metadata.version) == VERSION
    assert metadata.license_expression == "Apache-2.0"
    assert metadata.description == (SOURCES[package] / "README.md").read_text()
    assert files[f"{about}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()


def test_sdists_make_the_same_wheels_byte_by_byte(dist: Path, tmp_path: Path) -> None:
    for sdist in (dist / "python").glob("*.tar.gz"):
        with tarfile.open(sdist) as archive:
            archive.extractall(tmp_path, filter="data")
    (tmp_path / "again").mkdir()
    for folder in tmp_path.glob(f"*-{VERSION}"):
        again = ("build", "--quiet", "--wheel", *HASHED, "--out-dir", tmp_path / "again", folder)
        subprocess.run([find_uv(), *again], check=True)
    for wheel in (dist / "python").glob("*.whl"):
        assert (tmp_path / "again" / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_wheels_in_an_empty_environment(installed: Path, tmp_path: Path) -> None:
    said = run(installed / "trainjob", "--version", cwd=tmp_path)
    assert said.stdout == f"trainjob, version {VERSION}\n", said.stderr
    said = run(installed / "trainjob", "validate", ROOT / "examples/digits.yaml", cwd=tmp_path)
    assert said.stdout == "valid: 3 pods, 0 GPUs\n", said.stderr
    said = run(installed / "python", "-c", "import trainjob, trainjob_trainer", cwd=tmp_path)
    assert (said.returncode, said.stderr) == (0, "")
    said = run(installed / "trainjob", "controller", cwd=tmp_path)
    assert "pip install 'trainjob[controller]'" in said.stderr


def test_a_script_without_tensorflow(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import tensorflow\n")
    (tmp_path / "job.yaml").write_text(JOB)
    said = run(installed / "trainjob", "run", "job.yaml", "--plain", cwd=tmp_path)
    assert said.returncode == 1
    assert "pip install 'trainjob-trainer[cpu]'" in said.stderr
    assert "Restarting" not in said.stdout


def test_what_the_packages_bring_along(dist: Path) -> None:
    boms = {name: json.loads((dist / f"{name}.cdx.json").read_text()) for name in EXTRAS}
    for name, bom in boms.items():
        assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.5")
        about = bom["metadata"]["component"]
        assert (about["name"], about["version"]) == (name, VERSION)
    parts = {name: {part["name"] for part in bom["components"]} for name, bom in boms.items()}
    assert {"trainjob-trainer", "pydantic", "kopf"} <= parts["trainjob"]
    assert {"tensorflow-cpu", "keras"} <= parts["trainjob-trainer"]


@pytest.mark.nightly
def test_the_plugin_by_kubectl_and_krew(dist: Path, installed: Path, tmp_path: Path) -> None:
    env = {
        "HOME": str(tmp_path),
        "KREW_ROOT": str(tmp_path / "krew"),
        "PATH": f"{tmp_path}/krew/bin:{program('kubectl').parent}:{os.defpath}",
    }
    words = ("install", f"--manifest={dist / 'trainjob.yaml'}", f"--archive={dist / f'{PLUGIN}.tar.gz'}")
    subprocess.run([program("krew"), *words], env=env, check=True, capture_output=True)

    def kubectl(path: str) -> subprocess.CompletedProcess[str]:
        command = [program("kubectl"), "trainjob", "--version"]
        return subprocess.run(
            command, env={**env, "PATH": path}, capture_output=True, text=True, check=False, timeout=60
        )

    alone = kubectl(env["PATH"])
    assert (alone.returncode, "pip install trainjob" in alone.stderr) == (127, True)
    beside = kubectl(f"{env['PATH']}:{installed}")
    assert beside.stdout == f"trainjob, version {VERSION}\n", beside.stderr
    # The package's own entry point, without krew.
    own = kubectl(f"{installed}:{os.defpath}")
    assert own.stdout == f"kubectl trainjob, version {VERSION}\n", own.stderr


def test_the_plugin_fetches_its_own_version(dist: Path, tmp_path: Path) -> None:
    with tarfile.open(dist / f"{PLUGIN}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    for fetcher, expected in {
        "uvx": f"--from trainjob=={VERSION} trainjob get -n ml",
        "pipx": f"run --spec trainjob=={VERSION} trainjob get -n ml",
    }.items():
        folder = tmp_path / fetcher
        folder.mkdir()
        (folder / fetcher).write_text('#!/bin/sh\necho "$@"\n')
        (folder / fetcher).chmod(0o755)
        command = ["/bin/sh", tmp_path / PLUGIN, "get", "-n", "ml"]
        said = subprocess.run(command, env={"PATH": str(folder)}, capture_output=True, text=True, check=True)
        assert said.stdout == f"{expected}\n"


@pytest.mark.parametrize(
    ("given", "image"),
    [
        ("", f"ghcr.io/trainjob/operator@{DIGEST}"),
        ("image.tag=mine", "ghcr.io/trainjob/operator:mine"),
        ("image.repository=mirror.example/operator", f"mirror.example/operator:{VERSION}"),
        (f"image.digest=sha256:{'0' * 64}", f"ghcr.io/trainjob/operator@sha256:{'0' * 64}"),
    ],
)
def test_the_chart_names_the_image_that_was_tested(dist: Path, given: str, image: str) -> None:
    command = [program("helm"), "template", "one", dist / f"trainjob-{VERSION}.tgz", "--kube-version=1.37"]
    command += ["--set", given] if given else []
    shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    kinds = [one for one in yaml.safe_load_all(shown) if one["kind"] in ("Deployment", "Job")]
    containers = [one for each in kinds for one in each["spec"]["template"]["spec"]["containers"]]
    assert {one["image"] for one in containers} == {image}


def test_a_chart_needs_the_digest_of_its_image() -> None:
    with pytest.raises(click.UsageError, match="'latest' is no digest"):
        name_image("", "latest")


def test_the_chart_says_what_artifact_hub_shows(dist: Path) -> None:
    with tarfile.open(dist / f"trainjob-{VERSION}.tgz") as archive:
        described = yaml.safe_load(archive.extractfile("trainjob/Chart.yaml") or b"")
    annotations = {key: yaml.safe_load(text) for key, text in described["annotations"].items()}
    crd = yaml.safe_load((ROOT / "manifests/crd/crd.yaml").read_text())
    (shown,) = annotations["artifacthub.io/crds"]
    assert (shown["kind"], shown["name"]) == (crd["spec"]["names"]["kind"], crd["metadata"]["name"])
    assert shown["version"] == crd["spec"]["versions"][0]["name"]
    (image,) = annotations["artifacthub.io/images"]
    assert image["image"] == f"ghcr.io/trainjob/operator:{VERSION}@{DIGEST}"
    (example,) = annotations["artifacthub.io/crdsExamples"]
    assert example == yaml.safe_load((ROOT / "examples/digits.yaml").read_text())
