"""What counts as the same outcome."""

from pathlib import Path

import numpy as np
import pytest

from support.trainer.forms import REFERENCE, Differs, Failure, Form, differences, forms_in

FORM = Form("one", Path("forms.py"))
NOISE = Differs("each worker draws its own noise", 0.5)


def outcome(loss: float = 1.0, weight: float = 2.0, **more: object) -> dict[str, object]:
    return {"history": {"loss": [loss]}, "weights": [np.array([weight])], "files": [], **more}


def compared(form: Form, first: object, second: object | None = None) -> list[str]:
    seen = {REFERENCE: outcome(), "worker-0": first, "worker-1": first if second is None else second}
    return differences(form, seen)


def test_equal_outcomes_have_no_differences() -> None:
    assert compared(FORM, outcome(1.0 + 1e-7)) == []


@pytest.mark.parametrize(
    ("seen", "line"),
    [
        (outcome(loss=1.1), "/history/loss/0: off by 0.1"),
        (outcome(history={"loss": [1.0], "mae": [1.0]}), "/history: names ['loss'] became ['loss', 'mae']"),
        (outcome(history={"loss": [1.0, 1.0]}), "/history/loss: [1.0] became [1.0, 1.0]"),
        (outcome(weights=[np.zeros(2)]), "/weights/0: shape (1,) became (2,)"),
        (outcome(loss=float("nan")), "/history/loss/0: off by nan"),
        (outcome(files=["a.keras"]), "/files: [] became ['a.keras']"),
        (Failure("ValueError: no", "a trace"), "worker-0: ValueError: no"),
    ],
)
def test_a_difference_is_named_by_its_path(seen: object, line: str) -> None:
    assert compared(FORM, seen)[0].startswith(line)


def test_workers_are_compared_with_each_other() -> None:
    [line] = compared(FORM, outcome(), outcome(weight=2.1))
    assert line.startswith("worker-1 is not as worker-0: /weights/0")
    assert compared(Form("one", Path("forms.py"), apart=("weights",)), outcome(), outcome(weight=2.1)) == []


def test_what_another_worker_writes_is_a_difference() -> None:
    assert compared(FORM, outcome(), outcome(files=["a.keras"])) == ["worker-1 wrote ['a.keras']"]


@pytest.mark.parametrize(("weight", "is_as_stated"), [(2.0, False), (2.1, True), (4.0, False)])
def test_a_stated_difference_is_there_and_within_its_bound(weight: float, is_as_stated: bool) -> None:
    noisy = Form("one", Path("forms.py"), differs={"weights": NOISE})
    assert (compared(noisy, outcome(weight=weight)) == []) is is_as_stated


def test_forms_are_read_without_running_their_file(tmp_path: Path) -> None:
    file = tmp_path / "models.py"
    file.write_text(
        "import nothing_of_this_name\n\n\n"
        '@form(workers=3, differs={"weights": ("why", 0.5)}, refused="no", defect="wrong", shows="off")\n'
        "def first(scope): ...\n\n\n"
        "@form(workers=(1, 3))\ndef second(scope): ...\n\n\ndef third(scope): ...\n"
    )
    first, second, again = forms_in(file)
    assert (first.group, first.differs["weights"]) == ("models/3x1", Differs("why", 0.5))
    assert (first.defect, first.shows, first.refused) == ("wrong", "off", "no")
    assert [(one.name, one.group) for one in (second, again)] == [
        ("second-1", "models/1x1"),
        ("second-3", "models/3x1"),
    ]


def test_one_worker_is_refused_nothing_and_differs_in_what_is_stated_of_it(tmp_path: Path) -> None:
    file = tmp_path / "models.py"
    file.write_text(
        '@form(differs={"weights": ("why", 0.5)}, alone={"rows": ("that", 1.0)}, refused="no", killed=True)\n'
        "def first(scope): ...\n"
    )
    one, two, three = forms_in(file, (1, 2, 3))
    assert [each.name for each in (one, two, three)] == ["first-1", "first", "first-3"]
    assert (one.differs, one.refused, one.killed) == ({"rows": Differs("that", 1.0)}, "", False)
    assert (two.differs, two.refused, two.killed) == ({"weights": Differs("why", 0.5)}, "no", True)
    assert (three.refused, three.killed) == ("no", False)


def test_what_depends_on_the_number_of_workers_is_run_with_those_that_are_stated(tmp_path: Path) -> None:
    file = tmp_path / "models.py"
    file.write_text("@form(workers=2, only=True)\ndef first(scope): ...\n")
    assert [each.workers for each in forms_in(file, (1, 2, 3))] == [1, 2]
