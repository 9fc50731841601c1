"""tests/kind/run with stand-ins for Docker, kind and pytest: what it would do, in which order."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GO = ROOT / "testbed" / "go"
VERSION = tomllib.loads((ROOT / "operator" / "pyproject.toml").read_text())["project"]["version"]
IMAGES = [
    f"ghcr.io/trainjob/operator:{VERSION}",
    f"ghcr.io/trainjob/trainer:{VERSION}",
    "ghcr.io/acme/digits:1",
]


class Run:
    """The script, run once with programs that only write down how they were called."""

    def __init__(
        self, folder: Path, *, failing: str = "", keep: str = "", given: Mapping[str, str] | None = None
    ) -> None:
        log = folder / "calls"
        programs = folder / "bin"
        programs.mkdir()
        for name in ("docker", "kind", "kubectl", "helm", "pytest", "python"):
            program = programs / name
            program.write_text(
                f'#!/bin/sh\necho "{name} $*" >>{log}\n'
                f'[ {name} = pytest ] && echo "given $TRAINJOB_TEST_KUBECONFIG" >>{log}\n'
                f'case "{name} $*" in "{failing or "none"}"*) exit 3;; esac\n'
            )
            program.chmod(0o755)
        env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "TMPDIR": str(folder)}
        env |= {
            "PYTEST": str(programs / "pytest"),
            "PYTHON": str(programs / "python"),
            "KEEP": keep,
            **(given or {}),
        }
        done = subprocess.run(
            [ROOT / "tests" / "kind" / "run", "-k", "digits"],
            env=env, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        self.status = done.returncode
        self.calls = log.read_text().splitlines()
        self.left = list(folder.glob("tmp.*"))

    def of(self, start: str) -> list[str]:
        return [call for call in self.calls if call.startswith(start)]

    def option(self, start: str, name: str) -> list[str]:
        words = [shlex.split(call) for call in self.of(start)]
        return [call[call.index(name) + 1] for call in words if name in call]


def test_the_images_are_built_and_loaded_then_the_suite_runs(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.status == 0
    assert run.option("docker build", "--tag") == IMAGES
    assert run.option("docker build", "--target") == ["operator", "trainer"]
    assert run.option("docker build", "--build-arg") == [f"TRAINER_IMAGE={IMAGES[1]}"]
    nodes = "--name trainjob-e2e --nodes trainjob-e2e-worker,trainjob-e2e-worker2"
    assert run.of("kind load") == [f"kind load docker-image {' '.join(IMAGES)} {nodes}"]
    assert "--image" not in run.of("kind create")[0]
    (kubeconfig,) = run.option("kind create", "--kubeconfig")
    assert run.calls[-3:-1] == ["pytest tests/e2e/node -k digits", f"given {kubeconfig}"]
    assert run.calls[-1] == f"kind delete cluster --name trainjob-e2e --kubeconfig {kubeconfig}"
    assert run.left == []


def test_beside_the_testbeds_engine_the_images_are_those_that_it_names(tmp_path: Path) -> None:
    given = {"TRAINJOB_KIND_NODE_IMAGE": "localhost/node:1", "TRAINJOB_KIND_ARCHIVE": "/images.tar"}
    run = Run(tmp_path, given=given)
    assert run.status == 0
    assert run.option("kind create", "--image") == ["localhost/node:1"]
    assert run.of("docker build") == []
    nodes = "--name trainjob-e2e --nodes trainjob-e2e-worker,trainjob-e2e-worker2"
    assert run.of("kind load") == [f"kind load image-archive /images.tar {nodes}"]


def test_images_of_a_registry_are_tested_as_they_are(tmp_path: Path) -> None:
    given = {
        "TRAINJOB_KIND_OPERATOR": "there/operator@sha256:1",
        "TRAINJOB_KIND_TRAINER": "there/trainer@sha256:2",
    }
    run = Run(tmp_path, given=given)
    assert run.of("docker pull") + run.of("docker tag") == [
        "docker pull there/operator@sha256:1",
        "docker pull there/trainer@sha256:2",
        f"docker tag there/operator@sha256:1 {IMAGES[0]}",
        f"docker tag there/trainer@sha256:2 {IMAGES[1]}",
    ]
    assert run.option("docker build", "--tag") == IMAGES[2:]
    assert run.of("pytest")


def test_an_image_that_is_not_there_is_not_replaced_by_another(tmp_path: Path) -> None:
    given = {
        "TRAINJOB_KIND_OPERATOR": "there/operator@sha256:1",
        "TRAINJOB_KIND_TRAINER": "there/trainer@sha256:2",
    }
    run = Run(tmp_path, failing="docker pull", given=given)
    assert run.status == 3
    assert not run.of("pytest")


def test_without_an_engine_it_runs_beside_the_testbeds(tmp_path: Path) -> None:
    run = Run(tmp_path, failing="docker info")
    assert run.calls == ["docker info", "python -m testbed kind -- tests/kind/run -k digits"]


def test_failed_tests_are_its_failure_and_the_cluster_goes_all_the_same(tmp_path: Path) -> None:
    run = Run(tmp_path, failing="pytest")
    assert run.status == 3
    assert run.of("kind delete")
    assert run.left == []


def test_a_cluster_that_it_did_not_make_is_not_deleted(tmp_path: Path) -> None:
    run = Run(tmp_path, failing="kind create")
    assert run.status == 3
    assert not run.of("kind delete")
    assert not run.of("pytest")


def test_the_cluster_can_be_kept(tmp_path: Path) -> None:
    run = Run(tmp_path, keep="1")
    assert run.status == 0
    assert not run.of("kind delete")
    assert len(run.left) == 1


def test_the_cluster_has_two_workers_of_the_kubernetes_that_is_tested_with() -> None:
    config = yaml.safe_load((ROOT / "tests" / "kind" / "cluster.yaml").read_text())
    assert (config["kind"], config["name"]) == ("Cluster", "trainjob-e2e")
    assert [node["role"] for node in config["nodes"]] == ["control-plane", "worker", "worker"]
    version, kubeadms = (
        re.search(r"k8s\.io/kubernetes (v1\.\d+)(\.\d+)", (GO / module / "go.mod").read_text())
        for module in ("kubernetes", "kubeadm")
    )
    assert version
    assert kubeadms
    assert version[0] == kubeadms[0]
    (image,) = {node["image"] for node in config["nodes"]}
    assert image.startswith(f"kindest/node:{version[1]}.")


@pytest.mark.parametrize("program", ["docker", "kind", "kubectl", "helm"])
def test_a_missing_program_is_named(program: str, tmp_path: Path) -> None:
    for name in {"bash", "dirname", "docker", "kind", "kubectl", "helm"} - {program}:
        (tmp_path / name).symlink_to(
            "/usr/bin/env" if name not in ("bash", "dirname") else f"/usr/bin/{name}"
        )
    done = subprocess.run(
        [ROOT / "tests" / "kind" / "run"],
        env={"PATH": str(tmp_path), "TRAINJOB_KIND_ARCHIVE": "/images.tar"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == f"tests/kind/run needs {program} on PATH\n"


def test_make_knows_it_and_passes_arguments_on() -> None:
    make = ["make", "--directory", str(ROOT), "--no-print-directory"]
    dry = subprocess.run(
        [*make, "--dry-run", "kind-e2e", "ARGS=-k digits"], capture_output=True, text=True, check=True
    )
    assert dry.stdout.splitlines()[-1] == "tests/kind/run -k digits"
    told = subprocess.run([*make, "help"], capture_output=True, text=True, check=True).stdout
    assert any(line.startswith("kind-e2e ") and "kind cluster" in line for line in told.splitlines())
