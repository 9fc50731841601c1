"""Every command that a page shows is run as it stands, at a real API server; `ELSEWHERE` has the others.

Pods don't run here. What a kubelet and the controller would report is written by `Player`.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from testbed import Cluster
from testbed.programs import program

from support.kube.chart import KUBERNETES
from support.kube.helm import own_plane
from support.kube.real_kube import install_crd, now, open_admin
from support.pages import PAGES, ROOT, commands, inline_commands
from trainjob.cluster import ClusterError
from trainjob.cluster.kube.client import ApiClient
from trainjob.cluster.kube.resources import PODS, TRAINJOBS

Manifest = dict[str, Any]

SECONDS = 120
"""Of one command; against hanging only."""

ELSEWHERE = {
    r"make (run|test)": "CI runs the one, tests/multiprocess the other's job",
    r"trainjob run examples/": "tests/multiprocess trains each example with TensorFlow",
    r"trainjob (suspend|resume|scale) ": "need a run that trains: tests/cli, tests/multiprocess",
    r"trainjob doctor": "its answer is that of the machine and the cluster: tests/cli",
    r"trainjob .*--smoke": "needs TensorFlow: tests/multiprocess, tests/cli",
    r"(trainjob )?tensorboard|trainjob ui": "servers that run until Ctrl-C: tests/cli, tests/client",
    r"python -c .*profiler": "needs a job that trains: tests/trainer_plain/test_gpu_parts.py",
    r"python benchmarks/": "measure for minutes or hours, by hand: the page has the date and the machine",
    r"docker build ": "needs Docker; tests/e2e/node runs images that are built from the same files",
    r"kind ": "needs Docker, or the testbed's: make kind-e2e",
    r"helm push ": "test_helm.py pushes the chart to a real registry and installs it from there",
    r"helm .* test trainjob": "needs a controller that serves: tests/e2e/node/test_install.py",
    r"helm upgrade .*serviceMonitor": "needs the Prometheus operator; tests/chart holds what is created",
    r"kubectl .*(logs|exec|port-forward) ": "need pods that run: tests/e2e/node",
    r"kubectl top node": "needs the metrics server",
    r"kubectl (get|patch) (tfjobs|workloads?)": "need Kubeflow's or Kueue's kinds",
}
"""What isn't run here, and why or where."""

MORE = {
    r"kubectl (apply .*-k |delete crd )": "--dry-run=server",  # the release and the jobs stay
    r"helm template ": f"--kube-version {KUBERNETES}",  # a released Helm knows one
}
"""What is added to a command."""

RELEASE = "helm status trainjob {0} || helm install trainjob charts/trainjob {0}".format("-n trainjob-system")
NO_RELEASE = "helm uninstall trainjob -n trainjob-system --ignore-not-found"
BEFORE = {
    r"helm install trainjob": NO_RELEASE,
    r"helm (upgrade|rollback|uninstall) trainjob|kubectl -n trainjob-system rollout": RELEASE,
    r"helm rollback trainjob": "helm upgrade trainjob charts/trainjob -n trainjob-system",
    r"kubectl apply .*-k ": NO_RELEASE,
    r"(trainjob submit|kubectl apply -f) ": "kubectl delete tj --all",
    r"trainjob (get|logs|wait)|kubectl .*(get|describe|delete|wait|scale) tj": "kubectl get tj digits"
    " || kubectl apply -f job.yaml",
    r"kubectl get tj scans": "kubectl apply -f trainjob.yaml",
    r"trainjob run job\.yaml$": "rm -rf runs",  # with other arguments it would be another request
    r"trainjob run job\.yaml --volume trainjob-output=(\S+)": "mkdir -p {1}",
    r"trainjob cp digits:(\S+)": "trainjob run job.yaml; mkdir -p runs/training/digits/{1}",
    r"trainjob compare digits\.1": "rm -rf runs; trainjob run job.yaml; trainjob run job.yaml --fresh;"
    " for run in digits.1 digits; do mkdir -p runs/training/$run/logs;"
    """ echo '{{"step": 1, "metrics": {{"loss": 1}}}}' > runs/training/$run/logs/history.jsonl; done""",
    r"trainjob delete digits\.1": "rm -r runs; trainjob run job.yaml; trainjob run job.yaml --fresh",
    r"kubectl .* delete job,configmap,serviceaccount (\S+)": "for kind in configmap serviceaccount; do"
    " kubectl -n trainjob-system create $kind {1}; done;"
    " kubectl -n trainjob-system create job {1} --image=any",
    r"kubectl delete clusterrole,clusterrolebinding (\S+)": "kubectl create clusterrole {1} --verb=get"
    " --resource=pods; kubectl create clusterrolebinding {1} --clusterrole={1} --user=nobody",
    r"kubectl .* create secret generic": "kubectl -n trainjob-system create secret generic old-agent-key"
    " --from-literal=key=0123",
    r"kubectl (?:taint nodes|describe node) (\S+)": "echo"
    ' "{{apiVersion: v1, kind: Node, metadata: {{name: {1}}}}}" | kubectl apply -f -',
}
"""What has to be there before a command; `{1}` is what the pattern has found."""

WORDS = {"NAME": "digits", "NAMESPACE": "docs", "N": "3", "OLD": "old", "NEW": "new"}
PLACEHOLDERS = {"<node>": "lost-node", "/data/": "", "/srv/": "./"}

SCRIPT = "import sys\nprint('trained', *sys.argv[1:])\n"
JOB = """
apiVersion: trainjob.dev/v1alpha1
kind: TrainJob
metadata: {name: digits}
spec:
  worker: {replicas: 2}
  evaluator: {replicas: 0}
  output: {claim: {claimName: training}}
  template:
    spec:
      containers:
      - name: trainer
        image: acme/tf:1
        command: [python, train.py]
        volumeMounts: [{name: images, mountPath: /images}]
      volumes: [{name: images, persistentVolumeClaim: {claimName: images}}]
"""


class Player:
    """Reports what a kubelet and the controller would: pods run, hooks succeed, jobs train."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ended = threading.Event()
        self.is_patient = True
        """Whether jobs train on; otherwise they finish."""

    @contextmanager
    def at_work(self) -> Iterator[None]:
        thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    async def _run(self) -> None:
        async with open_admin(self._cluster) as api:
            while not self._ended.is_set():
                for resource, see_to in ((PODS, self._pod), (TRAINJOBS, self._job)):
                    for item in (await api.list(resource, None))["items"]:
                        with suppress(ClusterError):  # it has changed: next time
                            await see_to(api, item)
                await asyncio.sleep(0.1)

    async def _pod(self, api: ApiClient, pod: Manifest) -> None:
        if pod["status"]["phase"] != "Pending":
            return
        is_hook = "job-name" in pod["metadata"].get("labels", {})
        ready = {"type": "Ready", "status": str(not is_hook), "lastTransitionTime": now()}
        status = {"phase": "Succeeded" if is_hook else "Running", "conditions": [ready]}
        await api.replace(PODS, {**pod, "status": status}, subresource="status")

    async def _job(self, api: ApiClient, job: Manifest) -> None:
        state = "Running" if self.is_patient else "Complete"
        if job.get("status", {}).get("state") in (state, "Complete"):
            return
        condition = {
            "type": state,
            "status": "True",
            "reason": "Played",
            "message": "",
            "lastTransitionTime": now(),
        }
        status = {"state": state, "startTime": now(), "conditions": [condition]}
        ended = {"completionTime": now()} if state == "Complete" else {}
        await api.replace(TRAINJOBS, {**job, "status": {**status, **ended}}, subresource="status")


@dataclass
class Shell:
    """Runs commands in a folder that looks like the repository, with jobs of the page's own."""

    folder: Path
    env: dict[str, str]
    player: Player

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        self.player.is_patient = not re.search(r"\bwait\b|--wait|--logs|--follow|-f$", command)
        line = f"set -e\n{preparation(command)} >&2\n{filled_in(command)}"
        return subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self.env,
            input=JOB,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )


def filled_in(command: str) -> str:
    for placeholder, word in PLACEHOLDERS.items():
        command = command.replace(placeholder, word)
    command = re.sub(r"(?<![\w-])(NAMESPACE|NAME|N|OLD|NEW)(?![\w])", lambda m: WORDS[m[1]], command)
    more = [option for pattern, option in MORE.items() if re.match(pattern, command)]
    return " ".join([command.partition(" #")[0], *more])


def preparation(command: str) -> str:
    wanted = ((re.match(pattern, filled_in(command)), line) for pattern, line in BEFORE.items())
    found = [line.format(match[0], *match.groups()) for match, line in wanted if match]
    return "{ " + "; ".join(found or [":"]) + "; }"


def is_elsewhere(command: str) -> bool:
    return any(re.match(pattern, command) for pattern in ELSEWHERE)


ALL = {
    page: [" ".join(command.split()) for command in (*commands(text), *inline_commands(text))]
    for page, text in PAGES.items()
}


def shown() -> dict[str, list[str]]:
    """What is run, by page; what several pages show is run once."""
    found: dict[str, list[str]] = {}
    known: set[str] = set()
    for page, those in ALL.items():
        for command in those:
            short = command.replace(" --namespace ", " -n ")
            if not is_elsewhere(command) and short not in known:
                found.setdefault(page, []).append(command)
                known.add(short)
    return found


SHOWN = shown()


@pytest.fixture(scope="module")
def plane() -> Iterator[Cluster]:
    with own_plane("tests-docs") as cluster:
        install_crd(cluster)
        for name in ("docs", "trainjob-system", "ml-system", "ml", "training"):
            cluster.kubectl("create", "namespace", name)
        cluster.kubectl("config", "set-context", "--current", "--namespace=docs")
        yield cluster


@pytest.fixture(scope="module")
def player(plane: Cluster) -> Iterator[Player]:
    made = Player(plane)
    with made.at_work():
        yield made


@pytest.fixture
def shell(plane: Cluster, player: Player, tmp_path: Path) -> Shell:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("kubectl", "helm"):
        (programs / name).symlink_to(program(name))
    folder = tmp_path / "work"
    for name in ("src", "images"):
        (folder / name).mkdir(parents=True)
    for name in ("charts", "manifests"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("runs"))
    for name, text in {"train.py": SCRIPT, "job.yaml": JOB, "src/model.py": ""}.items():
        (folder / name).write_text(text)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    homes = {f"HELM_{name}_HOME": str(tmp_path / "helm") for name in ("CACHE", "CONFIG", "DATA")}
    return Shell(folder, {**plane.env, **homes, "PATH": path}, player)


@pytest.mark.parametrize("pattern", [*ELSEWHERE, *MORE, *BEFORE])
def test_each_entry_is_of_a_command(pattern: str) -> None:
    assert any(re.match(pattern, filled_in(command)) for those in ALL.values() for command in those)


@pytest.mark.parametrize("page", SHOWN)
def test_the_commands_of_a_page_work(shell: Shell, page: str) -> None:
    for name, text in re.findall(
        r"^```yaml\n# (\w+\.yaml)\n(.*?)^```", PAGES[page], re.DOTALL | re.MULTILINE
    ):
        (shell.folder / name).write_text(f"# {name}\n{text}")
    for command in SHOWN[page]:
        done = shell.run(command)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
