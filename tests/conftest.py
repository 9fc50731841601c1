"""Settings of all tests."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from testbed import progress
from testbed.places import cache
from xdist.scheduler import LoadScopeScheduling

pytest_plugins = ["support.golden", "support.tested"]

# Machines are shared and slow at times: how long an example takes says nothing about the code.
settings.register_profile(
    "trainjob",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    print_blob=True,
)
settings.register_profile(
    "thousands",
    settings.get_profile("trainjob"),
    # Other ones each time: `pytest tests/scenarios --hypothesis-profile=thousands` is for finding new ones.
    derandomize=False,
    max_examples=1000,
)
settings.load_profile("trainjob")

TIERS = {
    "cluster": ("tests/e2e/", "tests/chart/", "tests/bare_machine/"),
    "nightly": ("tests/fleet/", "tests/keras_own/whole/", "tests/versions/", "tests/gpu/"),
}
"""Folders whose tests all have a marker. What has none is a test of `make test`, which builds nothing."""
CLUSTERS = ("tests/e2e/node/", "tests/e2e/control_plane/test_docs.py", "tests/e2e/")
"""Folders of tests that share a cluster: one with pods, two without."""
FORMS = "tests/keras_forms/"
"""Its tests' parameters begin with the group whose processes they share."""
SHAPES = "tests/script_shapes/"
"""Its tests share nothing, and each takes seconds."""
LONG = (
    *CLUSTERS,
    FORMS,
    "tests/multiprocess/",
    SHAPES,
    *(f"tests/{name}/" for name in ("trainer_plain", "agent", "cli", "controller", "trainer", "client")),
)
"""Folders whose files take longest, in the order in which they begin: what is short fills up the end."""

# A shell ignores them for what it starts with `&`, and processes that tests start would inherit that.
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


# What a user's runs leave in the home folder: no test sees those of another one.
_STATE = Path(tempfile.gettempdir()) / f"trainjob-tests-{os.getpid()}"
os.environ["XDG_STATE_HOME"] = str(_STATE / "shared")
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(_STATE / str(next(_numbers))))


def pytest_configure(config: pytest.Config) -> None:
    """`make test` builds nothing and finds nothing built: a test that lacks its marker fails everywhere."""
    if "not cluster" in config.option.markexpr:
        if not hasattr(config, "workerinput"):  # pytest-xdist's workers inherit it
            os.environ["TRAINJOB_CACHE"] = str(cache() / "make-test")
        progress.say = _refuse


def _refuse(text: str) -> None:
    pytest.fail(f"`make test` builds nothing: mark this test `cluster` or `nightly` ({text})", pytrace=False)


def pytest_unconfigure() -> None:
    shutil.rmtree(_STATE, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Python doesn't look for garbage in TensorFlow and thousands of tests, neither meanwhile nor later."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Don't import what `-m` leaves out: that takes as long as the tests of a folder."""
    path = f"{collection_path.relative_to(config.rootpath).as_posix()}/"
    left_out = [tier for tier in TIERS if f"not {tier}" in config.option.markexpr]
    return any(path in TIERS[tier] for tier in left_out) or None


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what stands in the folders of a tier, and begin with what takes longest."""
    for item in items:
        for tier, folders in TIERS.items():
            if item.nodeid.startswith(folders):
                item.add_marker(tier)
    items.sort(key=lambda item: [not item.nodeid.startswith(folder) for folder in LONG])


class ClusterScheduling(LoadScopeScheduling):
    """Which tests stay together in one process: those of a file or group, and all on the same cluster."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(FORMS):
            return FORMS + nodeid.partition("[")[2].rpartition("/")[0]
        if nodeid.startswith(SHAPES):
            return nodeid
        clusters = (folder for folder in CLUSTERS if nodeid.startswith(folder))
        return next(clusters, nodeid.partition("::")[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Called by pytest-xdist. Two more than there are cores: those on a cluster wait; memory is for four."""
    return min((os.cpu_count() or 1) + 2, 4)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ClusterScheduling:
    """Called by pytest-xdist."""
    return ClusterScheduling(config, log)
