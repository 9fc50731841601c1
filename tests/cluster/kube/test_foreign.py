from __future__ import annotations

from trainjob.cluster.kube.cluster import REMEMBERED_SECONDS, UnlabeledObjects

SERVICE = {"kind": "Service", "metadata": {"namespace": "lab", "name": "digits"}}
PLACE = ("lab", "digits")


def test_what_is_in_the_way_is_remembered_for_a_while() -> None:
    now = [0.0]
    foreign = UnlabeledObjects(lambda: now[0])
    foreign.remember("Service", SERVICE)
    assert foreign.get("Service", PLACE) == SERVICE
    assert foreign.get("NetworkPolicy", PLACE) is None
    assert foreign.get("Service", ("other", "digits")) is None
    now[0] = REMEMBERED_SECONDS
    assert foreign.get("Service", PLACE) is None


def test_it_is_forgotten_when_the_name_is_free() -> None:
    foreign = UnlabeledObjects(lambda: 0.0)
    foreign.remember("Service", SERVICE)
    foreign.forget("Service", PLACE)
    foreign.forget("Service", PLACE)
    assert foreign.get("Service", PLACE) is None
