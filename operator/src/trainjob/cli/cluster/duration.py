"""Lengths of time on the command line."""

import re

import click

_PARTS = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s?)?")


class Duration(click.ParamType[float]):
    """Seconds, or `90s`, `15m`, `1h30m` as kubectl takes them."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds."""
        found = _PARTS.fullmatch(str(value))
        if not found or not any(found.groups()):
            self.fail(f"{value!r} is no time: write seconds, or 90s, 15m, 1h30m", param, ctx)
        hours, minutes, seconds = (float(part or 0) for part in found.groups())
        return 3600 * hours + 60 * minutes + seconds
