"""How soon new jobs have all of their pods, beside the time that a client needs to POST the same objects.

    python benchmarks/operator.py --kubeconfig FILE [--start-controller]

Needs a cluster with the CRD and a controller: in it or, with --start-controller, as a process here. All is
made in one new namespace, which is deleted in the end. No node runs the pods: they name a scheduler that does
not exist. Progress goes to stderr, one line of JSON to stdout; docs/benchmarks.md explains it.
"""

import sys

# This folder comes first on the path, and this file has the name of a module of the standard library.
sys.path.append(sys.path.pop(0))

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from measuring import (
    GUARD_SECONDS,
    Arrivals,
    a_namespace,
    add_cluster_options,
    build_job,
    controller_command,
    say,
    spread,
    turn_of,
)

from trainjob.api import API_VERSION, parse
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.config import Access, from_kubeconfig
from trainjob.cluster.kube.resources import BY_KIND, NETWORK_POLICIES, PODS, TRAINJOBS
from trainjob.core.agent import agent_source, read_source
from trainjob.core.manifests import build_network_policy, build_objects, build_token_secret
from trainjob.core.names import LABEL_JOB
from trainjob.core.settings import Bundle, Isolation

OWNER = "owner-of-raw-objects"
BUNDLE = Bundle(pyz=b"of raw pods", key=b"of raw pods")
START_SECONDS = 60.0


class Bench:
    """The measurements, in one namespace of one cluster."""

    def __init__(self, api: ApiClient, namespace: str, options: argparse.Namespace) -> None:
        self._api = api
        self._namespace = namespace
        self._options = options
        self._open = asyncio.Semaphore(options.connections)
        self._owner_uid = ""
        self._has_policy = self._has_agents = False
        self.arrivals = Arrivals(options.workers + 1)

    async def warm_up(self) -> None:
        """See a first job through, which takes a controller; learn what it makes beside pods."""
        owner = await self._api.create(TRAINJOBS, self._job(OWNER, suspend=True))
        self._owner_uid = owner["metadata"]["uid"]
        try:
            await asyncio.wait_for(self.measure_job("warm-up"), START_SECONDS)
        except TimeoutError:
            raise SystemExit(
                "no pods after 60 s: is a controller there? --start-controller starts one"
            ) from None
        # Its pods come before its NetworkPolicy, and its status after all of its objects.
        while not (await self._api.get(TRAINJOBS, self._namespace, "warm-up")).get("status"):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        policies = await self._api.list(NETWORK_POLICIES, self._namespace, selector=f"{LABEL_JOB}=warm-up")
        self._has_policy = bool(policies["items"])
        pods = await self._api.list(PODS, self._namespace, selector=f"{LABEL_JOB}=warm-up")
        self._has_agents = any(read_source(pod["spec"]) is not None for pod in pods["items"])
        await self.measure_raw("raw-warm-up")

    async def measure_job(self, name: str) -> float:
        """Return the seconds from just before the job is POSTed until its last pod is seen."""
        begin = time.perf_counter()
        async with self._open:
            await self._api.create(TRAINJOBS, self._job(name))
        return await self.arrivals.last_pod(name) - begin

    async def measure_raw(self, *names: str) -> float:
        """Return the seconds in which this client POSTs what the controller makes of these jobs."""
        objects = [manifest for name in names for manifest in self._raw_objects(name)]
        begin = time.perf_counter()
        await asyncio.gather(*(self._post(manifest) for manifest in objects))
        return time.perf_counter() - begin

    async def measure_burst(self, names: Sequence[str]) -> float:
        """Return the seconds from the first POST of a job to the last pod of all."""
        begin = time.perf_counter()
        await asyncio.gather(*(self.measure_job(name) for name in names))
        return time.perf_counter() - begin

    def objects_per_job(self) -> int:
        """Return how many objects a job is made of, itself aside."""
        return len(self._raw_objects("any"))

    async def _post(self, manifest: dict[str, Any]) -> None:
        async with self._open:
            await self._api.create(BY_KIND[manifest["kind"]], manifest)

    def _job(self, name: str, **spec: Any) -> dict[str, Any]:
        return build_job(self._namespace, name, self._options.workers, **spec)

    def _raw_objects(self, name: str) -> list[dict[str, Any]]:
        """Return a job's objects, with labels that no controller looks at, and an owner that is there."""
        raw = self._job(name)
        job = parse({**raw, "metadata": {**raw["metadata"], "uid": self._owner_uid}})
        made = build_objects(job, agent_source(job.metadata, BUNDLE) if self._has_agents else None)
        if self._has_agents:
            made.append(build_token_secret(job, BUNDLE))
        if self._has_policy:
            made.append(build_network_policy(job, Isolation("trainjob")))
        objects: list[dict[str, Any]] = json.loads(
            json.dumps(made).replace('"trainjob.dev/', '"trainraw.dev/')
        )
        for manifest in objects:
            owner = manifest["metadata"]["ownerReferences"][0]
            owner.update(apiVersion=API_VERSION, name=OWNER)
        return objects


async def pace(
    count: int, rate: float, measure: Callable[[str], Awaitable[float]], prefix: str
) -> list[float]:
    """Begin a measurement each 1/rate seconds, however long the earlier ones take."""
    begin = time.perf_counter()
    running = []
    for number in range(count):
        await turn_of(number, rate, begin)
        running.append(asyncio.ensure_future(measure(f"{prefix}-{number}")))
    return list(await asyncio.gather(*running))


async def run_all(bench: Bench, options: argparse.Namespace) -> dict[str, Any]:
    """Return what is measured."""
    say("warm up")
    await bench.warm_up()
    say(f"{options.paced} jobs at {options.rate:g} a second, first as raw POSTs")
    raw_paced = await pace(options.paced, options.rate, bench.measure_raw, "raw-paced")
    paced = await pace(options.paced, options.rate, bench.measure_job, "paced")
    names = [f"burst-{number}" for number in range(options.burst)]
    say(f"{options.burst} jobs at once, before and after them as raw POSTs")
    before = await bench.measure_raw(*[f"raw-before-{name}" for name in names])
    burst = await bench.measure_burst(names)
    after = await bench.measure_raw(*[f"raw-after-{name}" for name in names])
    raw = (before + after) / 2
    return {
        "benchmark": "operator",
        "controller": "local process" if options.start_controller else "as found",
        "pods_per_job": options.workers + 1,
        "objects_per_job": bench.objects_per_job(),
        "paced": {"jobs": options.paced, "rate": options.rate, **spread(paced), "raw": spread(raw_paced)},
        "burst": {
            "jobs": options.burst,
            "seconds": round(burst, 3),
            "raw_seconds": [round(before, 3), round(after, 3)],
            "ratio": round(burst / raw, 3),
        },
    }


@asynccontextmanager
async def a_controller(options: argparse.Namespace, namespace: str) -> AsyncIterator[None]:
    """Run a controller of this namespace here, if it is wanted."""
    if not options.start_controller:
        yield
        return
    command = controller_command(options, namespace)
    command += ["--no-leader-elect", "--workers", str(options.controller_workers)]
    process = await asyncio.create_subprocess_exec(*command, stdout=sys.stderr)
    try:
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def run(options: argparse.Namespace, access: Access) -> dict[str, Any]:
    """Return what is measured; the namespace and the controller are gone afterwards."""
    # One connection more than POSTs at once: the watch has its own.
    async with (
        ApiClient(access, connections=options.connections + 2) as api,
        a_namespace(api) as namespace,
        a_controller(options, namespace),
    ):
        bench = Bench(api, namespace, options)
        version = (await api.list(PODS, namespace))["metadata"]["resourceVersion"]
        watch = asyncio.ensure_future(bench.arrivals.watch(api, namespace, version))
        work = asyncio.ensure_future(run_all(bench, options))
        done, open_ = await asyncio.wait([work, watch], return_when="FIRST_COMPLETED", timeout=GUARD_SECONDS)
        for task in open_:
            task.cancel()
        if not done:
            raise SystemExit(f"not finished after {GUARD_SECONDS:g} s")
        if watch in done:
            await watch
        return await work


def read_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_cluster_options(parser)
    parser.add_argument(
        "--start-controller", action="store_true", help="run one here, for the namespace alone"
    )
    parser.add_argument("--controller-workers", type=int, default=16, metavar="N")
    parser.add_argument(
        "--workers", type=int, default=4, metavar="N", help="of each job; an evaluator comes on top"
    )
    parser.add_argument("--paced", type=int, default=100, metavar="JOBS")
    parser.add_argument("--rate", type=float, default=10.0, metavar="JOBS_A_SECOND")
    parser.add_argument("--burst", type=int, default=200, metavar="JOBS")
    parser.add_argument(
        "--connections", type=int, default=48, metavar="N", help="POSTs at once of this client"
    )
    return parser.parse_args()


if __name__ == "__main__":
    chosen = read_options()
    print(json.dumps(asyncio.run(run(chosen, from_kubeconfig(chosen.kubeconfig, chosen.context)))))
