"""In any order of events, the cache ends up with the newest state and without stale objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainjob.cluster import JobKey
from trainjob.cluster.kube.cache import MOST_TOMBSTONES, TOMBSTONE_SECONDS, Store, is_newer

KEY = JobKey("lab", "digits")


def pod(version: int, *, name: str = "a", uid: str = "1", job: str | None = "digits") -> dict[str, Any]:
    labels = {"trainjob.dev/job": job} if job else {}
    meta = {"namespace": "lab", "name": name, "uid": uid, "resourceVersion": str(version), "labels": labels}
    return {"kind": "Pod", "metadata": {**meta, "managedFields": [{}]}}


def job_of(manifest: dict[str, Any]) -> JobKey | None:
    name = manifest["metadata"]["labels"].get("trainjob.dev/job")
    return JobKey("lab", name) if name else None


def build_store() -> tuple[Store, list[JobKey]]:
    told: list[JobKey] = []
    return Store(job_of, told.append), told


@pytest.mark.parametrize(
    ("version", "other", "newer"),
    [
        ("10", "9", True),
        ("9", "10", False),
        ("9", "9", False),
        ("184467440737095516150", "9", True),
        ("a", "b", True),
        ("a", "a", False),
        ("", "", False),
        ("5", "", True),
    ],
)
def test_versions_are_numbers(version: str, other: str, newer: bool) -> None:
    assert is_newer(version, other) is newer


def test_the_newest_state_wins() -> None:
    store, told = build_store()
    assert store.put(pod(5))
    assert not store.put(pod(5))
    assert not store.put(pod(4))
    assert store.put(pod(6))
    assert told == [KEY, KEY]
    assert [p["metadata"]["resourceVersion"] for p in store.of_job(KEY)] == ["6"]


def test_what_has_ended_is_not_brought_back_by_older_news() -> None:
    store, _ = build_store()
    store.put(pod(5))
    store.remove(pod(7))
    assert not store.put(pod(6))
    assert store.of_job(KEY) == ()
    assert len(store) == 0


def test_an_end_that_comes_first_is_remembered() -> None:
    store, _ = build_store()
    store.remove(pod(7))
    assert not store.put(pod(5))


def test_the_end_of_the_old_one_leaves_the_new_one_of_that_name() -> None:
    store, _ = build_store()
    store.put(pod(5, uid="old"))
    store.put(pod(9, uid="new"))
    store.remove(pod(8, uid="old"))
    assert [p["metadata"]["uid"] for p in store.of_job(KEY)] == ["new"]


def test_a_late_event_of_the_old_one_does_not_come_after_the_new_ones_end() -> None:
    store, _ = build_store()
    store.put(pod(5, uid="old"))
    store.put(pod(9, uid="new"))
    store.remove(pod(10, uid="new"))
    assert not store.put(pod(7, uid="old"))
    assert len(store) == 0


def test_an_object_that_leaves_the_selector_may_come_back() -> None:
    store, _ = build_store()
    store.put(pod(5))
    store.remove(pod(6))
    assert store.put(pod(7))


def test_a_change_of_jobs_is_sent_to_both() -> None:
    store, told = build_store()
    store.put(pod(5))
    store.put(pod(6, job="letters"))
    assert told == [KEY, KEY, JobKey("lab", "letters")]
    assert store.of_job(KEY) == ()
    assert len(store.of_job(JobKey("lab", "letters"))) == 1


def test_a_list_drops_what_it_does_not_have() -> None:
    store, told = build_store()
    store.put(pod(5, name="a", uid="1"))
    store.put(pod(6, name="b", uid="2"))
    store.put(pod(20, name="c", uid="3"))
    told.clear()
    assert store.retain([(("lab", "b"), "2")], "10") == 1
    assert sorted(p["metadata"]["name"] for p in store.items()) == ["b", "c"]
    assert told == [KEY]
    assert not store.put(pod(9, name="a", uid="1"))


def test_a_list_drops_the_old_one_of_a_name_that_is_used_again() -> None:
    store, _ = build_store()
    store.put(pod(5, uid="old"))
    store.retain([(("lab", "a"), "new")], "10")
    assert len(store) == 0


def test_what_a_write_did_not_find_is_gone() -> None:
    store, told = build_store()
    store.put(pod(5))
    store.discard(("lab", "a"), "another")
    assert len(store) == 1
    store.discard(("lab", "a"), "1")
    assert len(store) == 0
    assert told == [KEY, KEY]


def test_what_is_never_read_is_not_kept() -> None:
    store, _ = build_store()
    store.put(pod(5))
    assert "managedFields" not in next(store.items())["metadata"]


def test_ends_are_not_remembered_for_ever() -> None:
    store, _ = build_store()
    for number in range(MOST_TOMBSTONES + 10):
        store.remove(pod(5, uid=str(number)))
    assert store.put(pod(5, uid="0"))
    assert not store.put(pod(5, uid=str(MOST_TOMBSTONES + 9)))


def test_ends_are_forgotten_after_minutes() -> None:
    now = 0.0
    store = Store(job_of, lambda _: None, time=lambda: now)
    store.remove(pod(7))
    now = TOMBSTONE_SECONDS
    assert not store.put(pod(5))
    now = 2.5 * TOMBSTONE_SECONDS
    assert not store.put(pod(5))  # the half that it is in is the older one now
    now = 4 * TOMBSTONE_SECONDS
    assert store.put(pod(5))


@dataclass
class World:
    """A few names at an API server, and all that was ever true."""

    version: int = 0
    uids: int = 0

    def __post_init__(self) -> None:
        self.there: dict[str, dict[str, Any]] = {}
        self.news: list[tuple[str, dict[str, Any]]] = []
        self.lists: list[tuple[list[dict[str, Any]], int]] = []

    def touch(self, name: str) -> None:
        self.version += 1
        if name not in self.there:
            self.uids += 1
        uid = self.there[name]["metadata"]["uid"] if name in self.there else str(self.uids)
        self.there[name] = pod(self.version, name=name, uid=uid)
        self.news.append(("put", self.there[name]))

    def delete(self, name: str) -> None:
        self.version += 1
        gone = self.there.pop(name, None)
        if gone is not None:
            self.news.append(("remove", pod(self.version, name=name, uid=gone["metadata"]["uid"])))


@given(
    st.lists(st.tuples(st.sampled_from(["touch", "touch", "delete"]), st.sampled_from("abc")), max_size=30),
    st.randoms(use_true_random=False),
)
def test_any_order_of_the_same_news_ends_with_the_same_objects(
    steps: list[tuple[str, str]], random: Any
) -> None:
    world = World()
    for step, name in steps:
        getattr(world, step)(name)
    store, _ = build_store()
    news = world.news * 2
    random.shuffle(news)
    for word, manifest in news:
        getattr(store, word)({**manifest, "metadata": dict(manifest["metadata"])})
    assert {p["metadata"]["name"]: p["metadata"]["resourceVersion"] for p in store.items()} == {
        name: p["metadata"]["resourceVersion"] for name, p in world.there.items()
    }
    assert len(store.of_job(KEY)) == len(world.there)


@given(
    st.lists(st.tuples(st.sampled_from(["touch", "touch", "delete"]), st.sampled_from("abc")), max_size=20),
    st.integers(0, 20),
    st.randoms(use_true_random=False),
)
def test_a_list_makes_good_for_every_deletion_that_was_lost(
    steps: list[tuple[str, str]], kept: int, random: Any
) -> None:
    world = World()
    for step, name in steps:
        getattr(world, step)(name)
    store, _ = build_store()
    news = [(word, manifest) for word, manifest in world.news if word == "put"][:kept]
    random.shuffle(news)
    for word, manifest in news:
        getattr(store, word)({**manifest, "metadata": dict(manifest["metadata"])})
    for manifest in world.there.values():
        store.put({**manifest, "metadata": dict(manifest["metadata"])})
    store.retain(
        [(("lab", name), manifest["metadata"]["uid"]) for name, manifest in world.there.items()],
        str(world.version),
    )
    assert {p["metadata"]["uid"] for p in store.items()} == {
        p["metadata"]["uid"] for p in world.there.values()
    }
