"""What is reported of a failure in an unmodified script."""

import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

import trainjob_trainer
from trainjob_trainer.edge import describe, read_graph_error

LABEL = "Received a label value of 1 which is outside the valid range of [0, 1).  Label values: 1 0"


class OpError(Exception):
    """As TensorFlow names the root of its graph's errors."""


class InvalidArgumentError(OpError):
    pass


def graph_error(script: str = "/work/train.py") -> str:
    return (
        "Graph execution error:\n\nDetected at node loss/Xent defined at (most recent call last):\n"
        f'  File "{script}", line 22, in <module>\n\n'
        f'  File "{Path(traceback.__file__)}", line 122, in error_handler\n\n'
        f"{LABEL}\n\t [[{{{{node loss/Xent}}}}]] [Op:__inference_multi_step_on_iterator_957]"
    )


@pytest.mark.parametrize(
    ("message", "cause", "lines"),
    [
        (graph_error(), LABEL, [22, 122]),
        (
            "Graph execution error:\n\nDetected at node a defined at (most recent call last):\n"
            f"<stack traces unavailable>\n{LABEL}\n\t [[{{{{node a}}}}]] [Op:__inference_b_9]",
            LABEL,
            [],
        ),
        (
            "Graph execution error:\n\n2 root error(s) found.\n  (0) INVALID_ARGUMENT:  wrong\n"
            "\t [[{{node a}}]]\n"
            "  (1) CANCELLED:  too\n0 successful operations. [Op:__inference_c_1]",
            "wrong",
            [],
        ),
        (
            "{{function_node __wrapped__X}} Incompatible shapes: [2] vs. [3] [Op:AddV2] name: ",
            "{{function_node __wrapped__X}} Incompatible shapes: [2] vs. [3]",
            [],
        ),
    ],
)
def test_the_cause_of_an_error_of_a_graph(message: str, cause: str, lines: list[int]) -> None:
    found, frames = read_graph_error(message)
    assert found == cause
    assert [line for _, line in frames] == lines


def raised(source: str, file: str) -> Callable[..., None]:
    names: dict[str, Callable[..., None]] = {}
    exec(compile(source, file, "exec"), names)  # noqa: S102 - a frame of a file that is none of the tests'
    return names["called"]


def told(error: Exception, library: str) -> str:
    script = raised("def called(inner, error):\n    inner(error)\n", "/work/train.py")
    inner = raised("def called(error):\n    raise error\n", library)
    with pytest.raises(type(error)) as caught:
        script(inner, error)
    return describe(caught.value, caught.tb.tb_next)


def test_the_users_line_is_named_where_the_package_is_reached_through_a_link(tmp_path: Path) -> None:
    package = Path(trainjob_trainer.__file__).parent
    (tmp_path / "link").symlink_to(package)
    for folder in (package, package.resolve(), tmp_path / "link"):
        seen = told(ValueError("no"), str(folder / "plain" / "fit.py"))
        assert seen == "train.py:2: ValueError: no"


def test_the_line_that_made_the_operation_is_named() -> None:
    error = InvalidArgumentError(graph_error("/work/losses.py"))
    assert told(error, str(Path(traceback.__file__))).startswith(
        "losses.py:22: InvalidArgumentError: Received a label value of 1"
    )
