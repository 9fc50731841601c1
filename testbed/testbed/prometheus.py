"""Debian's Prometheus as a process of this machine, for tests of metrics and for pictures of dashboards."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from testbed.component import Component, Plain, check_alive
from testbed.debian import unpacked
from testbed.errors import TestbedError
from testbed.ports import free_ports


class Prometheus:
    """Asks one for its data."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API; None if it doesn't answer, or knows no such thing yet.

        Raises:
            TestbedError: It refuses the question.
        """
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{self.url}/api/v1/{path}", params=parameters) as answer,
            ):
                told = await answer.json()
        except (aiohttp.ClientError, ValueError):
            return None
        if told["status"] != "success":
            raise TestbedError(f"{path} {parameters}: {told}")
        return told["data"]

    async def values(self, query: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series that the query has now; no NaN, which isn't data."""
        data = await self.get("query", query=query)
        series = [(each["metric"], float(each["value"][1])) for each in (data or {}).get("result", ())]
        return [(labels, value) for labels, value in series if not math.isnan(value)]

    async def history(self, query: str, begin: float, end: float, step: float) -> list[dict[str, Any]]:
        """Each series of the query between two moments, as its API has it: labels, and text at moments."""
        times = {"start": str(begin), "end": str(end), "step": str(step)}
        data = await self.get("query_range", query=query, **times)
        return list((data or {}).get("result", ()))


@contextmanager
def run_prometheus(
    folder: Path, *targets: str, rules: Sequence[Path] = (), seconds: int = 1
) -> Iterator[Prometheus]:
    """Runs it in the folder until the context ends.

    Args:
        folder: for its files.
        targets: addresses of controllers; they get the labels that the Prometheus operator gives.
        rules: files with rules.
        seconds: between two scrapes.
    """
    (port,) = free_ports(1)
    scraped = [
        {"targets": [target], "labels": {"namespace": "trainjob-system", "pod": f"trainjob-{number}"}}
        for number, target in enumerate(targets)
    ]
    config = {
        "global": {"scrape_interval": f"{seconds}s", "evaluation_interval": f"{seconds}s"},
        "rule_files": [str(file) for file in rules],
        "scrape_configs": [{"job_name": "trainjob", "honor_labels": True, "static_configs": scraped}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    words = (
        *(f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"),
        *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"),
    )
    part = Component("prometheus", (str(unpacked("prometheus")), *words))
    process = Plain(folder, die_with_us=True).start(part)
    try:
        yield Prometheus(f"http://127.0.0.1:{port}")
        check_alive(folder, process, "prometheus")
    finally:
        process.kill()
