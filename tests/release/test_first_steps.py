"""The record of a new user's first minutes is what the command writes."""

from __future__ import annotations

import re
from pathlib import Path

from first_steps import HERE, IN_A_NOTEBOOK, INSTALL, ON_A_CLUSTER, PAGE, SCRIPT, readable

from versions import ROOT

RECORD = PAGE.read_text()


def test_the_record_has_all_commands_with_their_times() -> None:
    blocks = re.findall(r"^```console\n\$ (.*?)\n(.*?)^```", RECORD, re.DOTALL | re.MULTILINE)
    commands = [*INSTALL, "cat digits.py", *HERE, *IN_A_NOTEBOOK, *ON_A_CLUSTER]
    assert [command for command, _ in blocks] == commands
    assert all(re.search(r"^\(\d+\.\d s\)\n\Z", output, re.MULTILINE) for _, output in blocks)


def test_the_script_has_25_lines() -> None:
    assert SCRIPT.count("\n") == 25
    compile(SCRIPT, "digits.py", "exec")


def test_nothing_of_the_machine_is_in_it() -> None:
    assert not re.search(rf"{ROOT}|/tmp/|/root/", RECORD)


def test_output_is_readable() -> None:
    folder = Path("/home/somebody/digits")
    output = f"\x1b[1mModel\x1b[0m {folder}/runs\n\n  in {folder}  \n"
    assert readable(output, folder) == "Model runs\n\n  in .\n"
