"""However a process ends, nothing of it and its children is left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from support.local.local_cluster import (
    build_pod,
    ended,
    is_alive,
    local_cluster,
    python,
    ref_of,
    state_of,
    until,
    wait_gone,
)

# Says which process it is, then resists SIGTERM in a session of its own.
STUBBORN = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print("grandchild", os.getpid(), flush=True)
    else:
        print("child", os.getpid(), flush=True)
    signal.pause()
"""
RUN = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from support.local.local_cluster import build_pod, local_cluster, python
from trainjob.cluster.local import LocalCluster

async def main():
    async with local_cluster(Path(sys.argv[1])) as (cluster, lines):
        code = Path(sys.argv[1], "code.py").read_text()
        await cluster.create(build_pod(python(code)))
        while len(lines.seen) < 3:
            await asyncio.sleep(0.01)
        print(*(line.split()[1] for _, line in lines.seen), flush=True)
        await asyncio.sleep(1000)

asyncio.run(main())
"""


async def test_children_that_resist_end_with_the_process(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, lines):
        await cluster.create(build_pod(python(STUBBORN + "\nimport sys; print('leaving'); sys.exit(5)")))
        assert (await ended(cluster))["exitCode"] == 5
        assert not [pid for pid in _stubborn(lines.seen) if is_alive(pid)]


async def test_a_whole_family_that_resists_is_killed_after_the_grace_period(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, lines):
        await cluster.create(
            build_pod(python(STUBBORN + "\nprint('up', flush=True)\nwhile True: signal.pause()"))
        )
        await lines.wait_for("up")
        await lines.wait_count(2)
        await cluster.delete(ref_of(cluster.snapshot().pods[0]), grace_seconds=1)
        pod = cluster.snapshot().pods[0]
        assert "deletionTimestamp" in pod["metadata"]
        assert "running" in state_of(pod)
        await until(cluster, lambda snapshot: not snapshot.pods)
        assert not [pid for pid in _stubborn(lines.seen) if is_alive(pid)]


async def test_a_process_may_use_its_grace_period(tmp_path: Path) -> None:
    code = """
import os, signal, sys
def leave(*_):
    os.write(1, b"saved\\n")
    sys.exit(86)
signal.signal(signal.SIGTERM, leave)
print("up", flush=True)
while True: signal.pause()
"""
    async with local_cluster(tmp_path) as (cluster, lines):
        await cluster.create(build_pod(python(code)))
        await lines.wait_for("up")
        await cluster.close(grace_seconds=30)
        assert ("worker-0", "saved") in lines.seen
        assert not cluster.snapshot().pods


async def test_a_stopped_process_is_killed_too(tmp_path: Path) -> None:
    code = "import os, signal\nprint(os.getpid(), flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)"
    async with local_cluster(tmp_path) as (cluster, lines):
        await cluster.create(build_pod(python(code)))
        await until(cluster, lambda s: "running" in state_of(s.pods[0]))
        await cluster.delete(ref_of(cluster.snapshot().pods[0]), grace_seconds=0)
        await until(cluster, lambda snapshot: not snapshot.pods)
        assert not [line for _, line in lines.seen if is_alive(int(line))]


async def test_deleting_at_once_ends_a_process_that_has_hardly_started(tmp_path: Path) -> None:
    async with local_cluster(tmp_path) as (cluster, _):
        await cluster.create(build_pod(["sleep", "1000"]))
        await until(cluster, lambda s: "running" in state_of(s.pods[0]))
        await cluster.delete(ref_of(cluster.snapshot().pods[0]))  # within the long default grace period
        await until(cluster, lambda snapshot: not snapshot.pods)


async def test_a_killed_launcher_takes_the_process_with_it(tmp_path: Path) -> None:
    code = "import os, signal; print(os.getppid(), os.getpid(), flush=True); signal.pause()"
    async with local_cluster(tmp_path) as (cluster, lines):
        await cluster.create(build_pod(python(code)))
        await lines.wait_count(1)
        launcher, process = map(int, lines.seen[0][1].split())
        os.kill(launcher, signal.SIGKILL)
        state = await ended(cluster)
        assert (state["exitCode"], state["signal"]) == (137, 9)
        wait_gone(process)


async def test_the_launcher_passes_sigterm_on(tmp_path: Path) -> None:
    code = "import os, signal; print(os.getppid(), flush=True); signal.pause()"
    async with local_cluster(tmp_path) as (cluster, lines):
        await cluster.create(build_pod(python(code)))
        await lines.wait_count(1)
        os.kill(int(lines.seen[0][1]), signal.SIGTERM)
        assert (await ended(cluster))["exitCode"] == 143


def test_a_killed_run_leaves_nothing(tmp_path: Path) -> None:
    code = STUBBORN + "\nprint('parent', os.getpid(), flush=True)\nwhile True: signal.pause()"
    (tmp_path / "code.py").write_text(code)
    support = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", RUN, str(tmp_path), support]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        pids = [int(pid) for pid in run.stdout.readline().split()]
        assert len(pids) == 3
        assert all(is_alive(pid) for pid in pids)
        run.kill()
    for pid in pids:
        wait_gone(pid)


def _stubborn(seen: list[tuple[str, str]]) -> list[int]:
    return [int(line.split()[1]) for _, line in seen if line.startswith(("child", "grandchild"))]
