"""How the controller does with a fleet of jobs: their ends, its restarts, what it takes, and a soak.

    PYTHONPATH=testbed python benchmarks/fleet.py [--jobs N] [--finished N] [--running N] [--soak SECONDS]

Starts a control plane of its own (Linux; testbed/README.md), nodes that kwok plays, and two controllers with
an election and the chart's permissions. All ends with it. The exit code is 1 if a promise did not hold.
Progress goes to stderr, one line of JSON to stdout; docs/benchmarks.md explains it.
"""

from __future__ import annotations

import sys

# This folder comes first on the path, and operator.py in it has the name of a standard library's module.
sys.path.append(sys.path.pop(0))

import argparse
import asyncio
import base64
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from itertools import count
from pathlib import Path
from typing import Any

from fleet_beside import Beside
from fleet_figures import (
    WELL,
    Counts,
    Fate,
    Look,
    errors_of_tracebacks,
    fate_of,
    growth,
    listed,
    mib,
    milliseconds,
    read_counts,
    tally,
    what_is_wrong,
)
from fleet_pods import POSTS, FleetPods, fleet_cluster, fleet_job, node_name
from measuring import Manifest, Mirror, say, spread, turn_of
from played_pods import job_of
from replicas import OPERATOR, ROOT, Controllers, Replica
from testbed.places import state
from testbed.plain_tier import PlainCluster

from trainjob.api import parse
from trainjob.cluster import ClusterError
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.resources import BY_KIND, SECRETS, TRAINJOBS
from trainjob.cluster.kube.transport import KEEPALIVE_SECONDS
from trainjob.core.manifests import build_network_policy, build_service
from trainjob.core.settings import Isolation

SOAK_LIFETIME = 15.0
SOAK_TTL = 10

CLOSED_SECONDS = KEEPALIVE_SECONDS + 5
"""After so long a connection that was kept for the next request is closed."""


class Jobs(Mirror):
    """The jobs of the fleet's namespace.

    Attributes:
        finished: the names of those that have ended.
    """

    def __init__(self, api: ApiClient, namespace: str) -> None:
        super().__init__(api, TRAINJOBS, namespace)
        self.finished: set[str] = set()

    def see(self, kind: str, thing: Manifest) -> None:
        """See `Mirror`."""
        name = thing["metadata"]["name"]
        if kind == "DELETED":
            self.finished.discard(name)
        elif self.status(name).get("completionTime"):
            self.finished.add(name)

    def status(self, name: str) -> Mapping[str, Any]:
        """Return a job's status."""
        return (self.objects.get(name) or {}).get("status") or {}


class Fleet:
    """The jobs of one namespace, and the controllers that look after them.

    Attributes:
        broken: promises that did not hold, one sentence each.
    """

    def __init__(
        self,
        api: ApiClient,
        cluster: PlainCluster,
        controllers: Controllers,
        options: argparse.Namespace,
        before: str,
    ) -> None:
        self._api = api
        self._cluster = cluster
        self._controllers = controllers
        self._options = options
        self._open = asyncio.Semaphore(POSTS)
        self._numbers = count()
        self._running: list[str] = []
        self._version = before
        self.broken: list[str] = []

    async def run(self, namespace: str, archive: str) -> dict[str, Any]:
        """Return what is measured with jobs in these two namespaces; the second is for finished ones."""
        options = self._options
        self._leader = await self._controllers.start(self._version)
        await self._leader.says("At work")
        key = base64.b64decode((await self._api.get(SECRETS, OPERATOR, "trainjob-agent-key"))["data"]["key"])
        self._namespace = namespace
        self._pods, self._jobs = FleetPods(self._api, namespace, key), Jobs(self._api, namespace)
        watching = asyncio.gather(self._pods.run(), self._jobs.run())
        try:
            return await _until_first(self._measure(archive, options), watching)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await self._pods.close()

    async def _measure(self, archive: str, options: argparse.Namespace) -> dict[str, Any]:
        say("a first job")
        await self._create("first", WELL, 1.0)
        await self._jobs.until(lambda: "first" in self._jobs.finished)
        await self._leader.stop()
        say(f"{options.finished} finished jobs")
        await self._create_finished(archive, options.finished)
        result: dict[str, Any] = {
            "benchmark": "fleet",
            "pods_per_job": options.workers + 1,
            "finished": options.finished,
            "start": await self._start_both("the start"),
        }
        result["jobs"] = await self._live() if options.jobs else None
        result["given_back"] = await self._give_back(result) if options.jobs else None
        result["beside_huge"] = await self._beside() if options.huge else None
        say(f"{options.running} jobs that run on")
        await self._run_on()
        result["running"] = options.running
        result["restart"] = await self._restart()
        result["upgrade"] = await self._exchange("a rolling upgrade", "")
        result["rollback"] = await self._exchange("a rollback", self._version)
        result["api_server"] = await self._restart_api_server()
        result["soak"] = await self._soak(options.soak) if options.soak else None
        if errors := [error for log in self._controllers.logs() for error in errors_of_tracebacks(log)]:
            kinds = "; ".join(listed(list(dict.fromkeys(errors)), most=3))
            self.broken.append(f"the controllers' logs have {len(errors)} tracebacks: {kinds}")
        return {**result, "broken": listed(self.broken)}

    # -- what jobs go through ---------------------------------------------------------------------------

    async def _live(self) -> dict[str, Any]:
        """Create jobs at a steady pace, and see all of them to their end."""
        options = self._options
        names = {f"job-{number}": fate_of(options.seed, number) for number in range(options.jobs)}
        say(f"{options.jobs} jobs, {options.rate:g} a second, that run for {options.lifetime:g} s")
        before = await self._counts(self._leader)
        spent = [replica.usage().processor_seconds for replica in (self._leader, self._standby)]
        begin, posted, posting = time.perf_counter(), {}, []
        for number, (name, fate) in enumerate(names.items()):
            await turn_of(number, options.rate, begin)
            posted[name] = time.perf_counter()
            posting.append(asyncio.ensure_future(self._create(name, fate, options.lifetime)))
        await asyncio.gather(*posting)
        await self._ends(names)
        seconds = time.perf_counter() - begin
        counted = await self._counts(self._leader) - before
        usages = [replica.usage() for replica in (self._leader, self._standby)]
        pods = options.workers + 1
        arrivals = [await self._pods.has(name, pods) - moment for name, moment in posted.items()]
        return {
            "jobs": options.jobs,
            "rate": options.rate,
            "seconds": round(seconds, 1),
            "fates": tally(fate.name for fate in names.values()),
            "states": tally(str(self._jobs.status(name).get("state")) for name in names),
            "pods": spread(arrivals),
            "queue_p99_ms": milliseconds(counted.quantile("trainjob_queue_seconds", 0.99)),
            "calls_a_job": round(counted.requests() / options.jobs, 1),
            "writes_a_job": round(sum(counted.writes().values()) / options.jobs, 1),
            "agent_calls_a_job": round(counted.total("trainjob_agent_calls_total") / options.jobs, 1),
            "cpu_seconds_a_job": round((usages[0].processor_seconds - spent[0]) / options.jobs, 4),
            "standby_cpu_seconds_a_job": round((usages[1].processor_seconds - spent[1]) / options.jobs, 4),
            "leader_mib": mib(usages[0].resident_bytes),
            "standby_mib": mib(usages[1].resident_bytes),
            "leader_peak_mib": mib(usages[0].peak_bytes),
        }

    async def _ends(self, names: Mapping[str, Fate]) -> None:
        """Wait for the ends of these jobs, and hold them against their fates."""
        try:
            async with asyncio.timeout(self._options.patience):
                await self._jobs.until(lambda: self._jobs.finished >= names.keys())
        except TimeoutError:
            left = names.keys() - self._jobs.finished
            one = min(left)
            message = self._jobs.status(one).get("message")
            self.broken.append(f"{len(left)} of {len(names)} jobs have not ended, such as {one}: {message}")
        for name in names.keys() & self._jobs.finished:
            fate = names[name]
            if fate.name == "in-place" and not self._pods.has_restarted(name):
                fate = WELL  # it ended before it was asked so often
            if wrong := what_is_wrong(fate, self._jobs.status(name)):
                self.broken.append(f"{name}, {wrong}")

    async def _beside(self) -> dict[str, Any]:
        """See small jobs through, alone and beside a huge one."""
        beside = Beside(
            self._api,
            self._namespace,
            self._pods,
            self._jobs,
            create=self._create,
            ends=self._ends,
            workers=self._options.workers,
        )
        return await beside.measure(self._options.huge)

    async def _give_back(self, result: Mapping[str, Any]) -> dict[str, Any]:
        """Delete all jobs that have ended, and look at the memory when nothing is left of them."""
        say("these jobs are deleted")
        uids = {name: self._jobs.objects[name]["metadata"]["uid"] for name in self._jobs.finished}
        await asyncio.gather(*(self._delete(name, uid) for name, uid in uids.items()))
        await self._jobs.until(lambda: not uids.keys() & self._jobs.objects.keys())
        await self._pods.until(lambda: not any(job_of(pod) in uids for pod in self._pods.objects.values()))
        await asyncio.sleep(CLOSED_SECONDS)
        looks: dict[str, Any] = {}
        for role, replica in (("leader", self._leader), ("standby", self._standby)):
            size = looks[f"{role}_mib"] = mib(replica.usage().resident_bytes)
            before, most = (result[part][f"{role}_mib"] for part in ("start", "jobs"))
            looks[f"{role}_share"] = round((most - size) / (most - before), 2) if most > before else None
        return looks

    async def _delete(self, name: str, uid: str) -> None:
        async with self._open:
            await self._api.delete(TRAINJOBS, self._namespace, name, uid=uid)

    async def _create_finished(self, namespace: str, number: int) -> None:
        """Create jobs that ended like the first one, with what stays of them when their pods are gone."""
        first = self._jobs.objects["first"]
        names = [f"finished-{index}" for index in range(number)]
        await asyncio.gather(*(self._create_finished_one(namespace, name, first) for name in names))

    async def _create_finished_one(self, namespace: str, name: str, first: Manifest) -> None:
        place = {"name": name, "namespace": namespace}
        async with self._open:
            job = await self._api.create(TRAINJOBS, {**first, "metadata": place, "status": {}})
            worker = {**first["status"]["worker"]}
            worker["selector"] = worker["selector"].replace("/job=first,", f"/job={name},")
            status = {**first["status"], "worker": worker}  # a copied selector would be mended, by a write
            await self._api.replace(TRAINJOBS, {**job, "status": status}, subresource="status")
            parsed = parse(job)
            for made in (build_service(parsed), build_network_policy(parsed, Isolation(OPERATOR))):
                await self._api.create(BY_KIND[made["kind"]], made)

    async def _run_on(self) -> None:
        """Create jobs that never end and have nothing new to report, and wait until all of them train."""
        self._running = [f"running-{number}" for number in range(self._options.running)]
        await asyncio.gather(*(self._create(name, WELL, None) for name in self._running))
        await self._jobs.until(lambda: all(self._is_still(name) for name in self._running))

    def _is_still(self, name: str) -> bool:
        status = self._jobs.status(name)
        return status.get("state") == "Running" and (status.get("progress") or {}).get("step") == 1

    async def _create(self, name: str, fate: Fate, lifetime: float | None, **spec: Any) -> None:
        node = node_name(next(self._numbers) % self._options.nodes)
        job = fleet_job(self._namespace, name, self._options.workers, node, fate, lifetime, **spec)
        async with self._open:
            await self._api.create(TRAINJOBS, job)

    # -- what controllers go through --------------------------------------------------------------------

    async def _start_both(self, what: str) -> dict[str, Any]:
        """Start a leader and a standby where there is none; nothing is to be written."""
        leader = self._leader = await self._controllers.start(self._version)
        await leader.ready()
        ready = time.perf_counter() - leader.began
        await leader.says("At work")
        at_work = time.perf_counter() - leader.began
        self._standby = await self._controllers.start(self._version)
        await self._settled(leader, leader.began)
        settled = time.perf_counter() - leader.began
        writes = (await self._counts(leader)).writes()
        self._expect_nothing(what, writes)
        await self._standby.ready()
        return {
            "ready_seconds": round(ready, 2),
            "at_work_seconds": round(at_work, 2),
            "settled_seconds": round(settled, 2),
            "writes": sum(writes.values()),
            "leader_mib": mib(leader.usage().resident_bytes),
            "standby_mib": mib(self._standby.usage().resident_bytes),
        }

    async def _restart(self) -> dict[str, Any]:
        """Stop both, and start them again."""
        say("both controllers restart")
        before = self._versions()
        await self._standby.stop()
        await self._leader.stop()
        result = await self._start_both("a restart of the controllers")
        self._expect_no_change("a restart of the controllers", before)
        return result

    async def _exchange(self, what: str, version: str) -> dict[str, Any]:
        """Replace both by another version as a Deployment does: a new one is ready before an old one goes."""
        say(what)
        before, leaderless = self._versions(), 0.0
        old = (self._leader, self._standby)
        new = []
        begin = time.perf_counter()
        for leaving in old:
            new.append(await self._controllers.start(version))
            await new[-1].ready()
            stopped = time.perf_counter()
            await leaving.stop()
            if leaving is self._leader:
                left = [replica for replica in (*old, *new) if not replica.ended]
                self._leader = await self._first_at_work(left)
                leaderless = max(leaderless, time.perf_counter() - stopped)
        self._standby = next(replica for replica in new if replica is not self._leader)
        await self._settled(self._leader, time.perf_counter())
        writes = (await self._counts(self._leader)).writes()
        self._expect_nothing(what, writes)
        self._expect_no_change(what, before)
        return {
            "seconds": round(time.perf_counter() - begin, 1),
            "without_leader_seconds": round(leaderless, 2),
            "writes": sum(writes.values()),
        }

    async def _restart_api_server(self) -> dict[str, Any]:
        """Kill the API server, start it again, and create a job."""
        say("the API server restarts")
        before, replicas = self._versions(), (self._leader, self._standby)
        await asyncio.to_thread(self._cluster.kill_api_server)
        killed = time.perf_counter()
        await asyncio.to_thread(self._cluster.start_api_server)
        ready = time.perf_counter()
        await self._create("after", WELL, 1.0)
        posted = time.perf_counter() - ready
        bare = asyncio.ensure_future(self._bare_watch(ready))
        seen = await self._pods.has("after", self._options.workers + 1) - ready
        await self._jobs.until(lambda: "after" in self._jobs.finished)
        self._expect_no_change("a restart of the API server", before)
        ended = sum(replica.ended for replica in replicas)
        if ended:
            self.broken.append(f"{ended} controllers ended when the API server restarted")
        return {
            "away_seconds": round(ready - killed, 1),
            "raw_post_seconds": round(posted, 2),
            "raw_watch_seconds": round(await bare, 2),
            "next_job_seconds": round(seen, 2),
        }

    async def _bare_watch(self, since: float) -> float:
        """Return the seconds until a new watch of the fleet's jobs has shown one of them."""
        while True:
            with suppress(ClusterError):  # while its caches are filled, the API server refuses watches
                async with aclosing(self._api.watch(TRAINJOBS, self._namespace, seconds=60)) as events:
                    async for _ in events:
                        return time.perf_counter() - since
            await asyncio.sleep(0.1)

    async def _settled(self, leader: Replica, since: float) -> None:
        """Return once the leader has looked at each job, and has asked each agent twice since this moment."""
        while True:
            asked = time.perf_counter()
            counts = await self._counts(leader)
            looked = counts.total("trainjob_reconcile_seconds_count") >= counts.total("trainjob_jobs")
            if looked and not counts.total("trainjob_queue_depth") and self._pods.all_called(since, times=2):
                return
            # Of ten thousand jobs a page takes a second of the leader, which has other things to do now.
            await asyncio.sleep(max(0.1, 2 * (time.perf_counter() - asked)))

    async def _first_at_work(self, replicas: Sequence[Replica]) -> Replica:
        """Return the one of these that leads first."""
        waiting = {asyncio.ensure_future(replica.says("At work")): replica for replica in replicas}
        done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        return waiting[done.pop()]

    async def _counts(self, replica: Replica) -> Counts:
        return read_counts(await replica.metrics())

    def _versions(self) -> dict[str, str]:
        """Return the versions of the running jobs and of their pods, by uid."""
        pods = (pod for name in self._running for pod in self._pods.of_job(name))
        jobs = (self._jobs.objects[name] for name in self._running)
        return {thing["metadata"]["uid"]: thing["metadata"]["resourceVersion"] for thing in (*pods, *jobs)}

    def _expect_nothing(self, what: str, writes: Mapping[str, int]) -> None:
        if writes:
            self.broken.append(f"{what} has cost writes: {dict(writes)}")

    def _expect_no_change(self, what: str, before: Mapping[str, str]) -> None:
        after = self._versions()
        if changed := sum(after.get(uid) != version for uid, version in before.items()):
            self.broken.append(f"{what} has changed {changed} of {len(before)} running jobs and pods")

    # -- the soak ---------------------------------------------------------------------------------------

    async def _soak(self, seconds: float) -> dict[str, Any]:
        """Create jobs that end and are deleted, and look whether anything grows."""
        say(f"a soak of {seconds:g} s, {self._options.soak_rate:g} jobs a second")
        before = await self._counts(self._leader)
        made, looks = 0, []
        for share in (1 / 6, 5 / 6):
            made += await self._churn(made, seconds * share)
            looks.append(await self._look(seconds / 6 if not looks else seconds))
        grown = growth(*looks)
        self.broken += [f"in a soak of {seconds:g} s, {sentence}" for sentence in grown]
        counted = await self._counts(self._leader) - before
        ends = {
            state: counted.total("trainjob_jobs_finished_total", state=state)
            for state in ("Complete", "Failed")
        }
        return {
            "seconds": seconds,
            "jobs": made,
            "finished": {state: round(number) for state, number in ends.items()},
            "looks": [
                {
                    "seconds": round(look.seconds),
                    "leader_mib": mib(look.resident_bytes),
                    "tasks": look.tasks,
                    "connections": look.connections,
                    "watches": look.watches,
                }
                for look in looks
            ],
        }

    async def _churn(self, first: int, seconds: float) -> int:
        """Create jobs for so long, and return their number once all of them are gone."""
        options, begin, number = self._options, time.perf_counter(), 0
        names = {}
        while time.perf_counter() < begin + seconds:
            name, fate = f"soak-{first + number}", fate_of(options.seed, first + number)
            names[name] = fate
            await self._create(name, fate, SOAK_LIFETIME, ttlSecondsAfterFinished=SOAK_TTL)
            number += 1
            await turn_of(number, options.soak_rate, begin)
        await self._jobs.until(lambda: not any(name in self._jobs.objects for name in names))
        return number

    async def _look(self, seconds: float) -> Look:
        """Look at the leader once the connections that it keeps for the next request are closed."""
        await asyncio.sleep(CLOSED_SECONDS)
        page = await asyncio.to_thread(self._cluster.kubectl, "get", "--raw", "/metrics")
        watches = read_counts(page).total("apiserver_longrunning_requests", verb="WATCH")
        tasks = (await self._counts(self._leader)).total("trainjob_tasks")
        usage, sockets = self._leader.usage(), await self._lasting_sockets()
        return Look(seconds, usage.resident_bytes, round(tasks), sockets, round(watches))

    async def _lasting_sockets(self) -> int:
        """Return how many sockets the leader has open all the time.

        Calls to agents come and go, and a sweep, each five minutes, leaves a connection for the next request.
        """
        until, fewest = time.perf_counter() + CLOSED_SECONDS, self._leader.sockets()
        while time.perf_counter() < until:
            await asyncio.sleep(0.25)
            fewest = min(fewest, self._leader.sockets())
        return fewest


async def _until_first(wanted: Coroutine[Any, Any, Any], running: Awaitable[Any]) -> Any:
    """Return what is wanted; what runs meanwhile may fail."""
    working, other = asyncio.ensure_future(wanted), asyncio.ensure_future(running)
    await asyncio.wait([working, other], return_when=asyncio.FIRST_COMPLETED)
    if not working.done():
        working.cancel()
        other.result()
    return working.result()


def other_version(folder: Path, commit: str) -> str:
    """Return where the packages of a commit are; without one, today's with another agent, by its digest."""
    sources = ("operator/src", "trainer/src")
    folder.mkdir()
    if commit:
        command = ["git", "archive", commit, *sources]
        archive = subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
    else:
        shutil.copytree(ROOT / sources[1], folder / sources[1])
        (folder / sources[1] / "trainjob_trainer" / "another_version.py").touch()
    return os.pathsep.join(str(folder / source) for source in sources)


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Return what is measured; the control plane and all that belongs to it is gone afterwards.

    The controllers' logs stay if they are asked for, or if anything is broken.
    """
    logs = options.logs or Path(tempfile.mkdtemp(prefix="fleet-logs-"))
    result: dict[str, Any] | None = None
    try:
        result = await _measure(options, logs)
    finally:
        if options.logs is None and result is not None and not result["broken"]:
            shutil.rmtree(logs)
        else:
            say(f"the controllers' logs are in {logs}")
    return result


async def _measure(options: argparse.Namespace, logs: Path) -> dict[str, Any]:
    name = f"fleet-{os.getpid()}"
    network = options.network or 100 + os.getpid() % 100
    async with fleet_cluster(name, options.nodes, network) as (cluster, api), AsyncExitStack() as stack:
        controllers = Controllers(cluster, state() / name / "account", logs)
        stack.push_async_callback(controllers.close)
        namespaces = [cluster.create_namespace(prefix) for prefix in ("fleet", "archive")]
        before = await asyncio.to_thread(other_version, state() / name / "before", options.before)
        return await Fleet(api, cluster, controllers, options, before).run(*namespaces)


def read_options() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=1000, metavar="N", help="from creation to their end")
    parser.add_argument("--rate", type=float, default=5.0, metavar="JOBS_A_SECOND")
    parser.add_argument("--lifetime", type=float, default=60.0, metavar="SECONDS", help="of a job's pods")
    parser.add_argument(
        "--workers", type=int, default=4, metavar="N", help="of a job, at least 2; an evaluator comes on top"
    )
    parser.add_argument(
        "--finished", type=int, default=10_000, metavar="N", help="jobs that have ended before"
    )
    parser.add_argument(
        "--running", type=int, default=200, metavar="N", help="jobs while controllers restart"
    )
    parser.add_argument(
        "--huge", type=int, default=0, metavar="WORKERS", help="of one job beside small ones; 0 for none"
    )
    parser.add_argument("--before", default="", metavar="COMMIT", help="the version of before the upgrade")
    parser.add_argument("--soak", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--soak-rate", type=float, default=1.0, metavar="JOBS_A_SECOND")
    parser.add_argument("--seed", type=int, default=1, help="of the jobs' fates")
    parser.add_argument("--nodes", type=int, default=20, metavar="N")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keeps the controllers' logs there")
    parser.add_argument("--network", type=int, help="pods are below 127.NETWORK")
    parser.add_argument(
        "--patience", type=float, default=600.0, metavar="SECONDS", help="for the last jobs' ends"
    )
    return parser.parse_args()


def main() -> int:
    """Run it, and return the exit code."""
    result = asyncio.run(run(read_options()))
    print(json.dumps(result, allow_nan=False))
    return int(bool(result["broken"]))


if __name__ == "__main__":
    sys.exit(main())
