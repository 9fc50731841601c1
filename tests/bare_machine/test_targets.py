"""release/bare_machine.py: each target as the first one on a machine, none forgotten."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

import bare_machine
from versions import ROOT

MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = bare_machine.targets(MAKEFILE)
MADE_UP = """\
UV := uv
NOTHING = test ! -e runs -a -z "$$(ls $$TRAINJOB_CACHE)$$(ls $$TMPDIR)$$(ls $$XDG_STATE_HOME)"
.PHONY: first again bad up down version
first:  ## One.
	@$(NOTHING) && touch $$TRAINJOB_CACHE/used $$TMPDIR/used $$XDG_STATE_HOME/used runs
again: Makefile
	@$(NOTHING)
bad:
	@exit 3
up:
	@touch $$TRAINJOB_CACHE/running
down:
	@rm $$TRAINJOB_CACHE/running
version:
	@test "$(NEW)" && test -z "$$TRAINJOB_TEST_KUBECONFIG$$MAKE_OPTION"
rooted:
	@exit 4
$(UV):
	@exit 5
"""


def test_every_target_is_found() -> None:
    make = ["make", "--no-print-directory", "-C", ROOT, "help"]
    told = subprocess.run(make, capture_output=True, text=True, check=True).stdout
    helped = [line.split()[0] for line in told.splitlines()]
    (phony,) = re.findall(r"^\.PHONY: (.*\n.*)$", MAKEFILE, re.MULTILINE)
    assert helped == TARGETS
    assert {*TARGETS} == {*phony.replace("\\", "").split()}
    assert bare_machine.choose(TARGETS, []) == TARGETS


def test_some_targets_and_all_but_some(capsys: pytest.CaptureFixture[str]) -> None:
    assert bare_machine.choose(TARGETS, ["kind-e2e", "help"]) == ["help", "kind-e2e"]
    assert {*TARGETS} - {*bare_machine.choose(TARGETS, ["--without", "test", "docs"])} == {"test", "docs"}
    with pytest.raises(SystemExit):
        bare_machine.choose(TARGETS, ["kind"])
    assert "no target kind" in capsys.readouterr().err


def test_what_a_target_needs_is_what_its_help_says() -> None:
    said = dict(re.findall(r"^([a-z0-9-]+):.*## (.*)$", MAKEFILE, re.MULTILINE))
    rooted = {name for name, text in said.items() if re.search(r"\broot\b|apt-get", text)}
    assert bare_machine.NEEDS.keys() == rooted
    assert {*bare_machine.OPTIONS, *bare_machine.THEN, *bare_machine.THEN.values()} <= {*TARGETS}


def test_every_target_runs_every_night() -> None:
    nightly = yaml.safe_load((ROOT / ".github/workflows/nightly.yml").read_text())
    commands = [step["run"] for job in nightly["jobs"].values() for step in job["steps"] if "run" in step]
    own = {target for command in commands for target in re.findall(r"\bmake ([\w-]+)", command)}
    (words,) = [command.partition("bare_machine.py")[2] for command in commands if "bare_machine" in command]
    without = {"test-gpu", "test-nightly"}  # GitHub's machines have no GPU; a part of the night is a job
    (parts,) = re.findall(r"^NIGHTLY := (.*)$", MAKEFILE, re.MULTILINE)
    assert {*parts.split()} <= {*own}
    assert sorted([*own, *without, *bare_machine.choose(TARGETS, shlex.split(words))]) == sorted(TARGETS)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose targets fail if they find what another one has left."""
    monkeypatch.setenv("TRAINJOB_TEST_KUBECONFIG", "/another/cluster")
    monkeypatch.setenv("MAKE_OPTION", "1")
    monkeypatch.setattr(bare_machine, "OPTIONS", {"version": ["NEW=9.9.9"]})
    monkeypatch.setattr(bare_machine, "THEN", {"up": "down"})
    monkeypatch.setattr(bare_machine, "NEEDS", {"rooted": ("root", lambda: False)})
    (tmp_path / "Makefile").write_text(MADE_UP)
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path))
    for words in (["init", "--quiet"], ["add", "Makefile"], ["commit", "--quiet", "--message=a"]):
        subprocess.run([*git, *words], check=True)
    return tmp_path


def test_each_target_finds_nothing_of_the_others(repository: Path) -> None:
    chosen = ["first", "again", "bad", "up", "down", "version", "rooted"]
    outcomes = bare_machine.run_all(repository, chosen)
    statuses = {target: status for target, (status, _) in outcomes.items()}
    assert statuses == {**dict.fromkeys(chosen, 0), "bad": 2, "rooted": None}
    assert outcomes["rooted"][1] == "not run: it needs root"
    assert re.fullmatch(r"exit status 2, \d+ s", outcomes["bad"][1])


def test_what_a_target_leaves_running_is_ended_without_being_asked(repository: Path) -> None:
    assert [*bare_machine.run_all(repository, ["up"])] == ["up", "down"]


@pytest.mark.parametrize(
    ("statuses", "ci", "code"),
    [([0, 0], "", 0), ([0, None], "", 0), ([0, None], "true", 1), ([0, 2], "", 1)],
)
def test_its_own_status(
    statuses: list[int | None], ci: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = {str(number): (status, "") for number, status in enumerate(statuses)}
    monkeypatch.setattr(bare_machine, "run_all", lambda *_: outcomes)
    monkeypatch.setattr(bare_machine.sys, "argv", ["bare_machine.py"])
    monkeypatch.setenv("CI", ci)
    assert bare_machine.main() == code
