"""Settings of all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

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

CLUSTER = Path(__file__).parent / "cluster"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Says which tests stay together when several processes run them, and begins with the longest.

    All tests on a cluster are one group, for there is one cluster; elsewhere each file is one.
    """
    items.sort(key=lambda item: CLUSTER not in item.path.parents)
    for item in items:
        group = (
            "cluster" if CLUSTER in item.path.parents else str(item.path.relative_to(item.config.rootpath))
        )
        item.add_marker(pytest.mark.xdist_group(group))
