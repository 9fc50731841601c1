from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator

import pytest

from trainjob.cli.controller import LogFormat, start_logging


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    with warnings.catch_warnings():
        yield
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("kopf"):
            logging.getLogger(name).setLevel(logging.NOTSET)


def write(form: LogFormat) -> list[str]:
    stream = io.StringIO()
    start_logging(form, stream)
    log = logging.getLogger("trainjob.controller.operator")
    log.info("at work on %s", "päd")
    log.debug("not at this level")
    try:
        raise ValueError("a defect")
    except ValueError:
        log.exception("it failed")
    return stream.getvalue().splitlines()


def test_lines_for_people() -> None:
    first, second, *traceback = write("plain")
    time, _, rest = first.partition(" ")
    assert (time[10], time[-5], time[-1]) == ("T", ".", "Z")
    assert rest == "INFO    controller.operator: at work on päd"
    assert second.endswith("ERROR   controller.operator: it failed")
    assert traceback[-1] == "ValueError: a defect"


def test_lines_for_machines() -> None:
    first, second = map(json.loads, write("json"))
    assert set(first) == {"time", "level", "logger", "message"}
    assert (first["level"], first["logger"]) == ("info", "trainjob.controller.operator")
    assert first["message"] == "at work on päd"
    assert second["error"].endswith("ValueError: a defect")


def test_what_others_log_and_warn() -> None:
    stream = io.StringIO()
    start_logging("plain", stream)
    logging.getLogger("kopf.activities.startup").info("Activity succeeded.")
    logging.getLogger("kopf._core.reactor.running").error("three tracebacks")
    logging.getLogger("kopf._core.reactor.observation").warning("Unresolved resources")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.warn("an old way", DeprecationWarning, stacklevel=1)
    text = stream.getvalue()
    assert "Unresolved resources" in text
    assert "an old way" in text
    assert "Activity" not in text
    assert "tracebacks" not in text
