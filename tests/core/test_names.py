from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainjob.core.names import Replica, hostname, pod_labels, pod_name

uids = st.text("0123456789abcdef-", min_size=1, max_size=36)
replicas = st.builds(Replica, st.sampled_from(["chief", "worker", "ps", "evaluator"]), st.integers(0, 999))


def test_a_pod_is_named_after_its_replica() -> None:
    name = pod_name("digits", "some-uid", Replica("worker", 1), 1)
    assert name.startswith("digits-worker-1-")
    assert len(name) == len("digits-worker-1-") + 8


@given(uids, uids, replicas, replicas, st.integers(1, 50), st.integers(1, 50))
def test_no_two_pods_share_a_name(
    uid: str,
    other_uid: str,
    replica: Replica,
    other_replica: Replica,
    incarnation: int,
    other_incarnation: int,
) -> None:
    same = (uid, replica, incarnation) == (other_uid, other_replica, other_incarnation)
    names = (
        pod_name("a", uid, replica, incarnation),
        pod_name("a", other_uid, other_replica, other_incarnation),
    )
    assert (names[0] == names[1]) == same


def test_a_hostname_is_the_same_for_every_pod_of_a_replica() -> None:
    assert hostname("digits", Replica("evaluator", 0)) == "digits-evaluator-0"


def test_labels_name_the_replica_of_a_pod() -> None:
    assert pod_labels("digits", Replica("worker", 1), 3) == {
        "app.kubernetes.io/name": "trainjob",
        "app.kubernetes.io/instance": "digits",
        "app.kubernetes.io/managed-by": "trainjob",
        "app.kubernetes.io/component": "worker",
        "trainjob.dev/job": "digits",
        "trainjob.dev/role": "worker",
        "trainjob.dev/index": "1",
        "trainjob.dev/incarnation": "3",
        "trainjob.dev/live": "true",
    }
