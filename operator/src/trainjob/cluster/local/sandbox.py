"""The resources that the pods of one run share: ports, GPUs, the output and a folder for private files."""

import asyncio
import base64
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from trainjob.api import BUNDLE_VOLUME, STATE_VOLUME
from trainjob.api.errors import trainer_of
from trainjob.cluster.agents.bundle import lay_out
from trainjob.cluster.local.launch import Launch, build_launch, hostname_of, hostnames_in
from trainjob.cluster.local.machine import CannotRunHere, Machine, PortBook, ReplicaPorts, share_gpus
from trainjob.cluster.local.memory import MemoryGroup, find_folder
from trainjob.cluster.local.network import NoOwnNetwork, OwnNetwork, why_not_alone
from trainjob.cluster.local.output import OutputLock, check_writable
from trainjob.cluster.protocol import Manifest
from trainjob.core.manifests import count_gpus
from trainjob.core.names import LABEL_INDEX, LABEL_ROLE
from trainjob_trainer.contract.files import TOKEN
from trainjob_trainer.contract.replicas import EVALUATOR

_PREFIX = "trainjob-"
_IN_USE = ".in-use"


class PrivateFolder:
    """A new folder that only this user can enter.

    The lock on a file in it shows that it is in use: by this process, or by one that has inherited `fd`. The
    system releases the lock with the last of them, however they end.

    Args:
        parent: where to create it; what killed processes have left there is removed.

    Attributes:
        path: the folder.
        fd: the descriptor that holds the lock.

    Raises:
        OSError: it can't be created.
    """

    def __init__(self, parent: Path) -> None:
        remove_stale(parent)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
        unlocked = self.path / f"{_IN_USE}.new"
        self.fd = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with suppress(OSError):  # a file system without locks: nobody else can lock it either
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unlocked.rename(self.path / _IN_USE)  # it is never seen unlocked while this process lives

    def remove(self) -> None:
        """Remove the folder; more calls do nothing."""
        if self.fd >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self.fd)
            self.fd = -1


def remove_stale(parent: Path) -> None:
    """Remove this user's private folders whose processes are gone."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            status = folder.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
                continue
            with (folder / _IN_USE).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises BlockingIOError while it is in use
                if os.path.samestat(os.fstat(lock.fileno()), (folder / _IN_USE).stat()):
                    shutil.rmtree(folder, ignore_errors=True)


class Sandbox:
    """Translates pods, and holds their resources until `leave`.

    Args:
        machine: this machine.
        base_port: the first replica's port for TensorFlow, or None for any free ports.
        arrange: called with the job's output folder before it is created and locked; may rename folders, and
            returns the folder of this run.

    Attributes:
        root: the job's output folder, once a pod with one on this machine has been admitted.
        folder: the parent folder of volumes.
        base_port: as given.
        token: the secret that the job's agents and the controller share, once it is unpacked.
        network: the replicas' own; None if they have this machine's.

    Raises:
        CannotRunHere: no folder for temporary files can be created.
    """

    def __init__(self, machine: Machine, base_port: int | None, arrange: Callable[[Path], Path]) -> None:
        self._arrange = arrange
        self.root: Path | None = None
        self.folder = machine.folder
        self.base_port = base_port
        self.token: str | None = None
        self.network: OwnNetwork | None = None
        self._groups = find_folder()
        self._book = PortBook(base_port)
        self._has_begun = False
        self._lock: OutputLock | None = None
        try:
            self._private = PrivateFolder(Path(tempfile.gettempdir()))
        except OSError as error:
            message = f"can't create a temporary folder: {error}; set TMPDIR to one with space"
            raise CannotRunHere([message]) from error
        self._machine = replace(machine, bundles=self._private.path / "bundles")

    def admit_all(self, pods: list[Manifest]) -> tuple[str, ...]:
        """Assign GPUs and ports, create the output folder and lock it against other runs.

        Once more for a job of another size: replicas that are there already keep what they have.

        Returns:
            The differences from a cluster, one line each.

        Raises:
            CannotRunHere: with every reason why these pods can't run here, and the replicas concerned.
        """
        names = [volume["name"] for pod in pods for volume in pod["spec"].get("volumes") or ()]
        volumes = dict.fromkeys(name for name in names if name not in (BUNDLE_VOLUME, STATE_VOLUME))
        if unknown := [name for name in self._machine.volumes if name not in volumes]:
            present = ", ".join(volumes)
            raise CannotRunHere(
                f"--volume {name}: no pod of the job has that volume; there are {present}" for name in unknown
            )
        self._share_gpus(pods)
        refused: dict[str, list[str]] = {}
        launches: list[Launch] = []
        for pod in pods:
            try:
                launches.append(self.admit(pod))
            except CannotRunHere as cannot:
                for line in cannot.lines:
                    refused.setdefault(line, []).append(replica_name(pod))
        if refused:
            raise CannotRunHere(f"{', '.join(replicas)}: {line}" for line, replicas in refused.items())
        notes = [note for launch in launches for note in launch.notes]
        if not self.limits_memory and any(launch.memory for launch in launches):
            notes.append("memory limits are not enforced: this user can't make control groups here")
        training = [pod for pod in pods if pod["metadata"]["labels"][LABEL_ROLE] != EVALUATOR]
        if not self._has_begun and len(training) > 1:
            notes += self._make_network(launches, training)
        self._has_begun = True
        return tuple(dict.fromkeys(notes))

    def admit(self, pod: Manifest) -> Launch:
        """Return a pod's process, after assigning its ports and locking its output.

        Raises:
            CannotRunHere: with every reason why it can't run here.
        """
        try:
            self._book.give(hostnames_in(pod))
        except OSError as error:
            raise CannotRunHere([str(error)]) from error
        launch = build_launch(pod, self._machine, self._book.ports, self.private_folder(pod))
        if launch.root is None or self._lock is not None:
            return launch
        root = self._arrange(launch.root)
        check_writable(root)
        self._lock = OutputLock(root)
        self.root = root
        self._machine = replace(self._machine, instead={str(launch.root): root})
        return build_launch(pod, self._machine, self._book.ports, self.private_folder(pod))

    def unpack(self, secret: Manifest) -> None:
        """Create the bundle of a job's pods: this machine's own agent, and the token.

        Raises:
            CannotRunHere: it is another Secret, or the bundle can't be created.
        """
        name, data = secret["metadata"]["name"], secret.get("data") or {}
        if set(data) != {TOKEN}:
            raise CannotRunHere([f"Secret {name} isn't supported on this machine"])
        folder = self._machine.bundles / name
        try:
            self.token = base64.b64decode(data[TOKEN], validate=True).decode()
            shutil.rmtree(folder, ignore_errors=True)
            lay_out(folder, self.token)
        except (OSError, ValueError) as error:
            raise CannotRunHere([f"can't write the agent's files: {error}"]) from error

    def private_folder(self, pod: Manifest) -> Path:
        """Return the pod's own folder, which `LocalPod` creates."""
        return self._private.path / str(pod["metadata"]["name"])

    def ports_of(self, pod: Manifest) -> ReplicaPorts:
        """Return the ports of an admitted pod's hostname."""
        return self._book.ports[hostname_of(pod)]

    @property
    def limits_memory(self) -> bool:
        """Return whether pods' memory limits are enforced."""
        return self._groups is not None

    def memory_group(self, pod: str, limit: int | None) -> MemoryGroup | None:
        """Return a new group with this limit, or None if there is no limit, or none is enforced.

        Raises:
            OSError: it can't be made.
        """
        return MemoryGroup(self._groups, pod, limit) if self._groups is not None and limit else None

    @property
    def held(self) -> tuple[int, ...]:
        """Return the descriptors that a pod's launcher must keep open while it runs."""
        return (self._private.fd, *((self._lock.fd,) if self._lock is not None else ()))

    async def connect(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection to a port of a replica; as `asyncio.open_connection`."""
        connect = asyncio.open_connection if self.network is None else self.network.connect
        return await connect(host, port)

    def leave(self) -> None:
        """Release the output for other runs, and remove private files; more calls do nothing."""
        if self._lock is not None:
            self._lock.close()
        self._private.remove()
        if self.network is not None:
            self.network.close()

    def _make_network(self, launches: Iterable[Launch], pods: Iterable[Manifest]) -> tuple[str, ...]:
        """Make the replicas' own network; without one, return what others can do."""
        choice, reason = self._machine.network, ""
        if choice is None:
            words = (word for launch in launches for word in launch.argv)
            entries = (entry for pod in pods for entry in trainer_of(pod["spec"]).get("env") or ())
            variables = (str(entry.get("value") or "") for entry in entries)
            reason = why_not_alone(words, variables, self._machine.job_folder)
        why = f"{reason}; --network own closes them" if reason else "--network host"
        if choice == "own" or (choice is None and not reason):
            try:
                self.network = OwnNetwork()
            except NoOwnNetwork as error:
                if choice == "own":
                    raise CannotRunHere([f"--network own: {error}"]) from error
                why = str(error)
            else:
                return ()
        ports = sorted({ports.tensorflow for ports in self._book.ports.values()})
        shown = f"{ports[0]} to {ports[-1]}"
        return (
            f"TensorFlow's ports, {shown}, let anyone who can reach this machine read and write files "
            f"({why})",
        )

    def _share_gpus(self, pods: Iterable[Manifest]) -> None:
        requested = {hostname_of(pod): count_gpus(pod) for pod in pods}
        held = self._machine.gpus_of
        shares = share_gpus(requested, self._machine.gpus, held)
        if not self._has_begun:
            self._machine = replace(self._machine, gpus_of=shares)
        elif any(held.values()):  # else training has started without GPUs: processes can't be given any
            if not shares:
                present = len(self._machine.gpus)
                raise CannotRunHere(
                    [f"the job requests {sum(requested.values())} GPUs, and this machine has {present}"]
                )
            self._machine = replace(self._machine, gpus_of={**held, **shares})


def replica_name(pod: Manifest) -> str:
    """Return the name of the pod's replica, such as `worker-0`."""
    labels = pod["metadata"]["labels"]
    return f"{labels[LABEL_ROLE]}-{labels[LABEL_INDEX]}"
