"""One job on a cluster, in a namespace of its own; what happens to its pods, happens to it by kubectl."""

from __future__ import annotations

import argparse
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from types import TracebackType
from typing import Any

from cluster_objects import HOSTNAME, OUTPUT, claim, killer, observer, toy_pod, toy_script, volume
from kubectl import Kubectl, Observer
from measuring import controller_command
from training_run import EVALUATOR, WORKERS, Toy, TrainingRun

from trainjob.core.names import LABEL_INDEX, LABEL_JOB, LABEL_LIVE, LABEL_ROLE

JOB = "toy"
OBSERVERS = tuple(f"observer-{index}" for index in range(len(WORKERS)))
_STAMPS = "stamps"
_EVALUATOR = f"{JOB}/evaluator"
_RESULTS = f"lines {_EVALUATOR}/evaluations.jsonl"
_SECONDS_BETWEEN_STATES = 5.0


class ClusterRun(TrainingRun):
    """A job in the namespace, and the pods that watch it; a context manager while the job is there."""

    look_seconds = 0.02

    def __init__(self, kubectl: Kubectl, looking: Observer, job: Mapping[str, Any]) -> None:
        self._kubectl = kubectl
        self._looking = looking
        self._job = job
        self._killers: dict[str, str] = {}
        self._next_state = 0.0

    def __enter__(self) -> ClusterRun:
        """Create the job."""
        self._kubectl.create(self._job)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Delete it and all of its pods."""
        self._kubectl("delete", "trainjob", JOB, "--cascade=foreground")

    def stamp(self, replica: str) -> dict[str, Any]:
        """Read from the volume."""
        folder = _EVALUATOR if replica == EVALUATOR else _STAMPS
        found: dict[str, Any] = self._looking.ask(f"json {folder}/{replica}.json")["found"]
        return found

    def clock(self) -> float:
        """The observing pod's."""
        return float(self._looking.ask(_RESULTS)["time"])

    def send(self, replicas: Sequence[str], number: int) -> float:
        """From inside the containers."""
        with ExitStack() as stack:
            strikers = []
            for replica in replicas:
                order = ("signal", str(int(number)), str(self.stamp(replica)["pid"]))
                strikers.append(stack.enter_context(Observer(self._kubectl, self._name(replica), *order)))
            # Whoever is late would find a process that its agent has ended, because another one is gone.
            for striker in strikers:
                striker.ask("ready")
            for striker in strikers:
                striker.say("now")
            return min(float(striker.answer()["time"]) for striker in strikers)

    def kill_agent(self, replica: str) -> float:
        """From outside its container: inside, nobody can kill the first process."""
        pod = self._pod(replica)
        killer_pod = self._killer_on(pod["spec"]["nodeName"])
        (told,) = self._kubectl.tell([(killer_pod, "kill-agent", pod["metadata"]["name"])])
        return float(told["time"])

    def delete_pod(self, replica: str) -> float:
        """With the grace that the job gives."""
        name = self._name(replica)
        begin = self.clock()
        self._kubectl("delete", "pod", name, "--wait=false")
        return begin

    def results(self) -> int:
        """Read from the volume."""
        return int(self._looking.ask(_RESULTS)["found"])

    def standbys(self) -> Mapping[str, float]:
        """By pod and process."""
        orders = [(self._name(replica), "standbys", str(self.stamp(replica)["pid"])) for replica in WORKERS]
        said = self._kubectl.tell(orders)
        return {f"{pod}/{pid}": used for (pod, *_), told in zip(orders, said, strict=True)
                for pid, used in told.items()}  # fmt: skip

    def import_seconds(self, at_once: int) -> float:
        """In pods like the job's."""
        said = self._kubectl.tell([(pod, "import") for pod in OBSERVERS[:at_once]])
        return round(max(float(told["seconds"]) for told in said), 2)

    @property
    def is_over(self) -> bool:
        """Looked up now and then."""
        if time.monotonic() < self._next_state:
            return False
        self._next_state = time.monotonic() + _SECONDS_BETWEEN_STATES
        return bool(self._kubectl("get", "trainjob", JOB, "-o", "jsonpath={.status.completionTime}"))

    def tail(self) -> str:
        """What a person would look at first."""
        everybody = ("-l", f"{LABEL_JOB}={JOB}")
        return "\n".join(
            self._kubectl(*words, check=False)
            for words in (
                ("describe", "trainjob", JOB),
                ("get", "pods", "-o", "wide"),
                ("logs", *everybody, "--prefix", "--tail=20"),
            )
        )

    def _pod(self, replica: str) -> dict[str, Any]:
        """Return the replica's pod that training counts on."""
        role, _, index = replica.rpartition("-")
        labels = {LABEL_JOB: JOB, LABEL_ROLE: role, LABEL_INDEX: index, LABEL_LIVE: "true"}
        selector = ",".join(f"{name}={value}" for name, value in labels.items())
        (found,) = self._kubectl.get("pods", "-l", selector)["items"]
        pod: dict[str, Any] = found
        return pod

    def _name(self, replica: str) -> str:
        return str(self._pod(replica)["metadata"]["name"])

    def _killer_on(self, node: str) -> str:
        """Return a pod that sees the node's processes: nobody inside a container can kill its first one."""
        if node not in self._killers:
            name = f"killer-{len(self._killers)}"
            self._kubectl.create(killer(name, node, self._pod(WORKERS[0])["spec"]["containers"][0]["image"]))
            self._kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=120s")
            self._killers[node] = name
        return self._killers[node]


@contextmanager
def a_cluster_run(toy: Toy, options: argparse.Namespace) -> Iterator[ClusterRun]:
    """Make all that the job needs, in a namespace that is deleted in the end; the job isn't there yet."""
    namespace = f"trainjob-benchmark-{secrets.token_hex(3)}"
    kubectl = Kubectl(options.kubectl, options.kubeconfig, options.context, namespace)
    image = options.image or f"ghcr.io/trainjob/trainer:{version('trainjob')}"
    pod = toy_pod(image, toy.variables(f"{OUTPUT}/{_STAMPS}"))
    kubectl.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    try:
        _create_storage(kubectl, namespace, options)
        kubectl.create(toy_script(), *(observer(name, pod) for name in OBSERVERS))
        kubectl("wait", *(f"pod/{name}" for name in OBSERVERS), "--for=condition=Ready", "--timeout=170s")
        with Observer(kubectl, OBSERVERS[0], "observe", OUTPUT) as looking, _a_controller(options, namespace):
            yield ClusterRun(kubectl, looking, toy.job(JOB, pod))
    finally:
        kubectl("delete", "namespace", namespace, check=False)
        if options.node_folder:
            kubectl("delete", "persistentvolume", namespace, check=False)


def _create_storage(kubectl: Kubectl, namespace: str, options: argparse.Namespace) -> None:
    if not options.node_folder:
        kubectl.create(claim())
        return
    nodes = kubectl.get("nodes")["items"]
    if len(nodes) != 1:
        raise SystemExit("--node-folder is for a cluster of a single node")
    hostname = nodes[0]["metadata"]["labels"][HOSTNAME]
    kubectl.create(volume(namespace, hostname, options.node_folder), claim(volume=namespace))


@contextmanager
def _a_controller(options: argparse.Namespace, namespace: str) -> Iterator[None]:
    """Run a controller of this namespace here, if it is wanted."""
    if not options.start_controller:
        yield
        return
    command = [*controller_command(options, namespace), "--no-leader-elect", "--lease-namespace", namespace]
    process = subprocess.Popen(command, stdout=sys.stderr)
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
