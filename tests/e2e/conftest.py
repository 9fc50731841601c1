"""The clusters that tests run on.

`control_plane` and `node_cluster` are started when the first test asks for them and end with this folder's
last one: the rest of the run needs no cluster beside it.
With TRAINJOB_TEST_KUBECONFIG=path both are the cluster that this file names: the same tests run on kind or
any other. KUBECONFIG alone doesn't do that: people have it set to clusters that tests have no business on.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from testbed import Cluster, Unfit, node_tier, plain_tier
from testbed.claims import NodeCluster
from testbed.progress import step

GIVEN = "TRAINJOB_TEST_KUBECONFIG"


def pytest_configure(config: pytest.Config) -> None:
    """Registers the mark of tests about the testbed itself: no other cluster has what they look at."""
    config.addinivalue_line("markers", "testbed: about the testbed's own clusters, not about any cluster")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves tests of the testbed out where it isn't used."""
    if not os.environ.get(GIVEN):
        return
    others = [item for item in items if item.get_closest_marker("testbed")]
    items[:] = [item for item in items if item not in others]
    config.hook.pytest_deselected(items=others)


@pytest.fixture(scope="package")
def control_plane(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """An API server with etcd and controller-manager, no nodes: pods stay Pending until the test says more.

    Shared by all of them: work in a namespace of your own (fixture `namespace`), leave nothing outside it.
    See `testbed.cluster.Cluster` for what it can do; `.kubeconfig` is all that other clients need.
    """
    name = f"tests-{os.getpid()}"
    start, stop = (lambda: plain_tier.start(name, die_with_us=True)), (lambda: plain_tier.stop(name))
    yield from _tier(request, "control plane", start, stop)


@pytest.fixture(scope="package")
def node_cluster(request: pytest.FixtureRequest) -> Iterator[NodeCluster]:
    """A whole single-node cluster with the project's images: pods run. Shared as `control_plane` is."""
    yield from _tier(request, "node", lambda: node_tier.start(die_with_us=True), node_tier.stop_own)


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[str]:
    """A new namespace in the cluster that the test uses; deleted after it."""
    fixture = "node_cluster" if "node_cluster" in request.fixturenames else "control_plane"
    cluster: Cluster = request.getfixturevalue(fixture)
    name = cluster.create_namespace()
    yield name
    cluster.delete("namespace", name, wait=False)


def _tier(
    request: pytest.FixtureRequest, name: str, start: Callable[[], Cluster], stop: Callable[[], None]
) -> Iterator[Cluster]:
    given = os.environ.get(GIVEN)
    if given:
        yield NodeCluster(Path(given).resolve())
        return
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with (
        capture.global_and_fixture_disabled() if capture else nullcontext()
    ):  # builds take minutes: show them
        try:
            plain_tier.sweep()
            with step(f"start the {name} tier"):
                cluster = start()
        except Unfit as error:
            _absent(name, str(error))
    yield cluster
    stop()


def _absent(tier: str, reason: str) -> None:
    """On CI a tier that can't run is a failure; elsewhere its tests are skipped, and the summary says so."""
    told = (
        f"the {tier} tier cannot run here: {reason} (testbed/README.md tells what it needs; "
        f"any cluster will do as well: {GIVEN}=path pytest tests/e2e)"
    )
    if os.environ.get("CI") == "true":
        pytest.fail(told, pytrace=False)
    pytest.skip(told)
