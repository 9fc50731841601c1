"""The Dockerfiles say what the lock file, the packages and the examples say."""

from __future__ import annotations

import re
import shlex
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
REQUIRES_PYTHON_TEXT = ">=3.11,<3.14"


@dataclass
class Stage:
    """One FROM and what follows it: (instruction, rest of the line), in order."""

    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [rest for name, rest in self.instructions if name == instruction]

    def position(self, instruction: str, start: str) -> int:
        return next(
            i for i, (n, rest) in enumerate(self.instructions) if n == instruction and rest.startswith(start)
        )

    def variables(self, instruction: str) -> dict[str, str]:
        words = [word for rest in self.all(instruction) for word in shlex.split(rest)]
        return dict(word.partition("=")[::2] for word in words)


def parse(path: Path) -> tuple[dict[str, str], dict[str, Stage]]:
    """The arguments before the first FROM, and the stages by name (the last one is also "")."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    stage = None
    for line in filter(None, map(str.strip, text.splitlines())):
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            stage = stages[name] = Stage(name, base)
        elif stage is None:
            assert instruction == "ARG"
            name, _, default = rest.partition("=")
            arguments[name] = default
        else:
            stage.instructions.append((instruction, " ".join(rest.split())))
    assert stage is not None
    return arguments, stages | {"": stage}


def project(folder: str = ".") -> dict[str, Any]:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text())


def read_pins(path: Path) -> dict[str, tuple[str, list[str]]]:
    """Version and hashes of each package in a file that `uv pip compile --generate-hashes` wrote."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    pins: dict[str, tuple[str, list[str]]] = {}
    for line in filter(None, text.splitlines()):
        asked, *hashes = line.split(" --hash=sha256:")
        one = Requirement(asked)
        assert all(re.fullmatch(r"[0-9a-f]{64}", each.strip()) for each in hashes), line
        pins[one.name] = str(one.specifier), hashes
    return pins


ARGUMENTS, STAGES = parse(ROOT / "Dockerfile")
TOOLS = read_pins(ROOT / "build-tools.txt")
EXAMPLE_ARGUMENTS, EXAMPLE = parse(EXAMPLES / "Dockerfile")
FINAL = {"operator": STAGES["operator"], "trainer": STAGES["trainer"], "example": EXAMPLE[""]}


@pytest.mark.parametrize("image", FINAL)
def test_it_runs_as_a_user_that_the_kubelet_sees_not_to_be_root(image: str) -> None:
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", FINAL[image].all("USER")[-1])


@pytest.mark.parametrize("image", ["operator", "trainer"])
def test_it_says_what_it_is(image: str) -> None:
    labels = FINAL[image].variables("LABEL")
    prefix = "org.opencontainers.image."
    assert labels[f"{prefix}version"] == "${VERSION}"
    assert labels[f"{prefix}revision"] == "${REVISION}"
    assert labels[f"{prefix}licenses"] == project(image)["project"]["license"]
    assert {f"{prefix}title", f"{prefix}description"} <= labels.keys()
    assert FINAL[image].variables("ARG")["VERSION"] == project(image)["project"]["version"]


def test_the_example_does_not_pass_for_the_trainer_image() -> None:
    labels = FINAL["example"].variables("LABEL")
    assert {name.rpartition(".")[2] for name in labels} == {"title", "description", "version"}


@pytest.mark.parametrize("image", ["operator", "trainer"])
def test_a_new_revision_or_source_keeps_the_layer_of_the_dependencies(image: str) -> None:
    stage = FINAL[image]
    dependencies = stage.position("COPY", f"--from={image}-dependencies")
    assert dependencies < stage.position("COPY", f"--from={image}-package")
    assert dependencies < stage.position("ARG", "REVISION")
    before = [STAGES[f"{image}-dependencies"], STAGES["build"]]
    copied = {source for each in before for rest in each.all("COPY") for source in rest.split()[:-1]}
    assert copied == {
        "build-tools.txt",
        "pyproject.toml",
        "uv.lock",
        "operator/pyproject.toml",
        "trainer/pyproject.toml",
    }


@pytest.mark.parametrize("image", ["operator", "trainer"])
def test_all_comes_from_the_lock_by_hash(image: str) -> None:
    (run,) = STAGES[f"{image}-dependencies"].all("RUN")
    (package,) = STAGES[f"{image}-package"].all("RUN")
    assert "uv export --frozen" in run
    assert run.count("uv pip install") == 1
    assert "uv pip install --require-hashes" in run
    assert "--no-index --no-deps" in package


def test_every_stage_stands_on_the_base_image_or_on_another_stage() -> None:
    bases = {stage.base for name, stage in STAGES.items() if name != ARGUMENTS["BASE_IMAGE"]}
    assert bases <= STAGES.keys() | {"${BASE_IMAGE}"}
    assert {FINAL["operator"].base, FINAL["trainer"].base} == {"${BASE_IMAGE}"}
    assert EXAMPLE[""].base == "${TRAINER_IMAGE}"


def test_the_base_image_has_the_oldest_python_that_is_supported() -> None:
    python = re.fullmatch(
        r"docker\.io/library/python:(3\.\d+)-slim-\w+@sha256:[0-9a-f]{64}",
        STAGES[ARGUMENTS["BASE_IMAGE"]].base,
    )
    assert python
    assert project()["project"]["requires-python"] == REQUIRES_PYTHON_TEXT
    assert python[1] == project()["tool"]["mypy"]["python_version"]
    assert REQUIRES_PYTHON_TEXT.startswith(f">={python[1]},")


def test_the_tools_of_every_build_come_by_hash() -> None:
    (run,) = STAGES["build"].all("RUN")
    assert run.count("pip install") == 1
    assert "pip install --no-cache-dir --require-hashes --only-binary :all: -r /opt/build-tools.txt" in run
    others = (ROOT / "Makefile", ROOT / ".github" / "workflows" / "release.yml")
    for line in [one for file in others for one in file.read_text().splitlines() if "/pip install" in one]:
        assert "--require-hashes --only-binary :all: -r build-tools.txt" in line
    assert STAGES["build"].position("COPY", "build-tools.txt /opt/") < STAGES["build"].position("RUN", "")
    assert all(hashes for _, hashes in TOOLS.values())


def test_the_tools_of_the_build_are_those_that_the_project_asks_for() -> None:
    asked = [line for line in (ROOT / "build-tools.in").read_text().splitlines() if not line.startswith("#")]
    pins = {one.name: str(one.specifier) for one in map(Requirement, asked)}
    assert pins.keys() == {"uv", "hatchling"}
    assert {name: TOOLS[name][0] for name in pins} == pins
    for folder in ("operator", "trainer"):
        (backend,) = (Requirement(one) for one in project(folder)["build-system"]["requires"])
        assert backend.name == "hatchling"
        assert pins["hatchling"].removeprefix("==") in backend.specifier


def test_the_choices_of_tensorflow_are_extras_of_the_trainer() -> None:
    extras = project("trainer")["project"]["optional-dependencies"]
    assert STAGES["trainer-dependencies"].variables("ARG") == {"TENSORFLOW": "cpu"}
    with_tensorflow = {name for name, wanted in extras.items() if "tensorflow" in str(wanted)}
    assert with_tensorflow == {"cpu", "gpu"}
    assert '--extra "${TENSORFLOW}" --extra bucket ' in STAGES["trainer-dependencies"].all("RUN")[0]


def test_an_unmodified_script_is_helped() -> None:
    packages, _, inside = FINAL["trainer"].variables("ENV")["PYTHONPATH"].partition("/site-packages/")
    assert packages == "/opt/trainjob/lib/python3"
    assert "/opt/trainjob/lib/python3" in STAGES["trainer-dependencies"].all("RUN")[0]
    assert (ROOT / "trainer" / "src" / inside / "sitecustomize.py").is_file()


@pytest.mark.parametrize("image", ["operator", "trainer"])
def test_only_below_tmp_is_anything_written(image: str) -> None:
    env = FINAL[image].variables("ENV")
    assert (env["HOME"], env["PYTHONDONTWRITEBYTECODE"]) == ("/tmp", "1")
    # Without an entry in /etc/passwd getpass asks for this one, and kopf asks getpass.
    assert env["USER"]


def test_the_example_starts_from_the_trainer_image_of_this_version() -> None:
    version = project("trainer")["project"]["version"]
    assert EXAMPLE_ARGUMENTS["TRAINER_IMAGE"] == f"ghcr.io/trainjob/trainer:{version}"


def test_the_example_holds_the_scripts_of_the_example_jobs() -> None:
    (*_, scripts) = EXAMPLE[""].all("COPY")
    jobs = [job for path in EXAMPLES.glob("*.yaml") for job in yaml.safe_load_all(path.read_text())]
    containers = [
        job["spec"]["template"]["spec"]["containers"][0] for job in jobs if job["kind"] == "TrainJob"
    ]
    ours = [one for one in containers if one["image"] == "ghcr.io/acme/digits:1"]
    assert ours
    for container in ours:
        assert container["command"][0] == "python"
        assert container["command"][1] in scripts.split()
    assert all((EXAMPLES / script).is_file() for script in scripts.split()[:-1])
