"""The test cluster by hand: `python -m testbed COMMAND`; README.md beside this package has the rest."""

import argparse
import sys

from testbed import debian, docker, kind, node_tier, plain_tier, programs
from testbed.errors import TestbedError
from testbed.images import need_images
from testbed.places import cache
from testbed.progress import say, step


def main() -> int:
    """Runs one command; the exit status."""
    parser = argparse.ArgumentParser(prog="testbed", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (function, help_text) in COMMANDS.items():
        commands.add_parser(name, help=help_text).set_defaults(function=function)
    up_command = commands.choices["up"]
    up_command.add_argument("--bare", action="store_true", help="without the project's images")
    up_command.add_argument("--joined", type=int, default=0, help="number of nodes beside the first one")
    commands.choices["kind"].add_argument("command", nargs="+", help="a program and its arguments, after --")
    arguments = vars(parser.parse_args())
    try:
        return arguments.pop("function")(**arguments) or 0
    except TestbedError as error:
        print(f"testbed: {error}", file=sys.stderr)
        return 1


def up(*, bare: bool, joined: int) -> None:
    """Leaves the whole cluster running."""
    with step("cluster"):
        cluster = node_tier.start(die_with_us=False, bare=bare, joined=joined)
    print(cluster.kubeconfig)


def control_plane() -> None:
    """Leaves a control plane running."""
    cluster = plain_tier.running(plain_tier.KEPT) or plain_tier.start(plain_tier.KEPT, die_with_us=False)
    print(cluster.kubeconfig)


def down() -> None:
    """Ends what the other commands left running, and what killed tests left behind."""
    plain_tier.sweep()
    plain_tier.stop(plain_tier.KEPT)
    node_tier.stop()
    docker.stop()


def beside_docker(*, command: list[str]) -> int:
    """Runs a command beside a Docker engine of its own."""
    return kind.enter(command)


def prepare() -> None:
    """Fetches and builds all that `make test-cluster` needs, so that no test waits for it."""
    missing = programs.missing()
    if missing:
        say(
            f"the first time this fetches Debian packages, compiles {len(missing)} programs from source and "
            f"builds 3 images: about 20 minutes on two cores, and 9 GB below {cache()}. It is done once."
        )
    debian.need_tools(*debian.TOOLS)
    for name in sorted(debian.UNPACKED.keys() - debian.OF_KIND):
        debian.unpacked(name)
    for number, name in enumerate(missing, 1):
        say(f"program {number} of {len(missing)}")
        programs.program(name)
    programs.forget_old()
    node_tier.prepare()


def images() -> None:
    """Builds the images that are out of date."""
    need_images()


COMMANDS = {
    "up": (up, "start a node with everything and print the path of its kubeconfig"),
    "control-plane": (
        control_plane,
        "start only the API, without root, and print the path of its kubeconfig",
    ),
    "down": (down, "stop both and clean up; nothing to stop is fine"),
    "kind": (beside_docker, "run a command beside a Docker engine and kind; `make kind-e2e` does"),
    "prepare": (prepare, "fetch and build all that `make test-cluster` needs, without starting it"),
    "images": (images, "build the images that are out of date"),
}

if __name__ == "__main__":
    sys.exit(main())
