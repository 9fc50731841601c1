"""The GPUs of this machine, shared out among the pods that ask for some."""

import re
from collections.abc import Mapping
from pathlib import Path

_DEVICE = re.compile(r"nvidia(\d+)")


def find_gpus(environ: Mapping[str, str], devices: Path = Path("/dev")) -> tuple[str, ...]:
    """Return the GPUs that the caller may use, as `CUDA_VISIBLE_DEVICES` names them."""
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        named = [part.strip() for part in chosen.split(",") if part.strip()]
        # CUDA itself stops at the first name that it doesn't know; -1 is how "none" is written.
        return tuple(named[: named.index("-1")] if "-1" in named else named)
    try:
        numbers = sorted(int(m.group(1)) for d in devices.iterdir() if (m := _DEVICE.fullmatch(d.name)))
    except OSError:
        return ()
    return tuple(str(number) for number in numbers)


def share_gpus(wanted: Mapping[str, int], present: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Give each hostname the GPUs that it asks for; nobody gets any when there are too few for all.

    Workers with and without a GPU can't train together, and two can't share one for their collectives.
    """
    if sum(wanted.values()) > len(present):
        return {}
    shares: dict[str, tuple[str, ...]] = {}
    start = 0
    for hostname, count in wanted.items():
        shares[hostname] = present[start : start + count]
        start += count
    return shares
