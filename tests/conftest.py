"""Settings of all tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Machines are shared and slow at times: how long an example takes says nothing about the code.
settings.register_profile(
    "trainjob",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
    print_blob=True,
)
settings.load_profile("trainjob")
