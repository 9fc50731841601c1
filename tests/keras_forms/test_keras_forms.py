"""Each form, run by one process and by several workers, ends with the same numbers, or as it states.

With FORMS_WORKERS=1,2,3 each is run with so many workers, besides the number that it states.

Those that are `often` run for each change, all others each night. Of forms that differ in kind one is chosen:
of data, of arguments, callbacks and own steps, of a refusal, of a numeric type; three workers, two devices, a
kill. Among those of a kind it is the one that runs most lines of the trainer a second; few groups are used,
since each starts processes of its own.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.trainer.forms import (
    REFERENCE,
    Failure,
    Form,
    differences,
    evaluator_differences,
    forms_in,
    run_group,
    run_killed,
)

WORKERS = tuple(map(int, filter(None, os.environ.get("FORMS_WORKERS", "").split(","))))
FILES = sorted(Path(__file__).parent.glob("[!t]*.py"))
FORMS = [form for file in FILES for form in forms_in(file, WORKERS)]
GROUPS = {form.group: [one for one in FORMS if one.group == form.group] for form in FORMS}


class FormDiffers(AssertionError):
    """The workers' outcome isn't the one process's."""


def parameters(*, killed: bool = False) -> Iterator[Any]:
    """By group, so that a group's forms stay together; `conftest.py` splits them there."""
    for group, forms in GROUPS.items():
        for form in [one for one in forms if one.killed or not killed]:
            defect = form.resume_defect if killed else form.defect
            known = pytest.mark.xfail(strict=True, raises=FormDiffers, reason=defect)
            is_often = form.often == "killed" if killed else form.often
            marks = [*([known] if defect else []), *([] if is_often else [pytest.mark.nightly])]
            yield pytest.param(group, form, id=f"{group}/{form.name}", marks=marks)


@pytest.fixture(scope="session")
def groups_run() -> dict[str, dict[str, dict[str, Any]]]:
    """By group: pytest comes back to one for the forms that are killed."""
    return {}


@pytest.fixture
def outcomes(
    group: str,
    groups_run: dict[str, dict[str, dict[str, Any]]],
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> dict[str, dict[str, Any]]:
    if group not in groups_run:
        wanted = {item.callspec.params["form"].name for item in request.session.items if _is_of(item, group)}
        root = tmp_path_factory.mktemp(group.replace("/", "-"))
        forms = [form for form in GROUPS[group] if form.name in wanted]
        groups_run[group] = run_group(forms, root)
    return groups_run[group]


def _is_of(item: Any, group: str) -> bool:
    return hasattr(item, "callspec") and item.callspec.params.get("group") == group


@pytest.mark.parametrize(("group", "form"), list(parameters()))
def test_form(group: str, form: Form, outcomes: dict[str, dict[str, Any]]) -> None:
    seen = outcomes[form.name]
    if isinstance(seen[REFERENCE], Failure):
        pytest.fail(f"the form itself is wrong: {seen[REFERENCE].error}\n{seen[REFERENCE].trace}")
    check(form, seen, form.shows if form.defect else "")


def check(form: Form, seen: dict[str, Any], shows: str) -> None:
    """Fail with all that differs; a known defect must show itself, or something else is wrong."""
    found = "\n".join(differences(form, seen))
    if found and shows not in found:
        pytest.fail(f"it fails, but not with {shows!r}:\n{found}")
    if found:
        raise FormDiffers(found)


@pytest.mark.parametrize(("group", "form"), list(parameters(killed=True)))
def test_killed_form(group: str, form: Form, outcomes: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """What is killed in its second epoch ends, in new processes, as the undisturbed one process.

    The figures of an evaluator are those of its last validation.
    """
    again, reference = run_killed(form, tmp_path), outcomes[form.name][REFERENCE]
    check(form, {**again, REFERENCE: reference}, form.resume_shows)
    found = "\n".join(evaluator_differences(form, reference, tmp_path))
    assert not found, found


def test_names_are_unique() -> None:
    assert len({form.name for form in FORMS}) == len(FORMS)
