from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from trainjob.cluster.fair_slots import FairQueue


def taken(queue: FairQueue[str], number: int = 100) -> list[str]:
    items = (queue.take() for _ in range(number))
    return [item for item in items if item is not None]


def test_namespaces_take_turns_and_so_do_the_jobs_in_each() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a/big/1", "a/big/2", "a/big/3", "a/big/4", "a/small/1", "b/one/1", "b/one/2"):
        queue.add(item, *item.split("/")[:2])
    assert len(queue) == 7
    assert taken(queue) == ["a/big/1", "b/one/1", "a/small/1", "b/one/2", "a/big/2", "a/big/3", "a/big/4"]
    assert len(queue) == 0


def test_no_group_has_more_than_its_share_and_all_together_no_more_than_there_are() -> None:
    queue: FairQueue[str] = FairQueue(slots=5, share=3)
    for group in "aaaaabbbbb":
        queue.add(group, group)
    assert Counter(taken(queue)) == {"a": 3, "b": 2}
    assert not queue.has_next
    queue.release("a")
    assert queue.has_next
    assert taken(queue) == ["b"]
    queue.release("b")
    assert taken(queue) == ["a"], "b has its turn behind a, and both are below their share"


def test_a_group_with_its_share_delays_no_other() -> None:
    queue: FairQueue[str] = FairQueue(share=1)
    for item in ("a1", "a2", "b1"):
        queue.add(item, item[0])
    assert taken(queue) == ["a1", "b1"]
    assert not queue.has_next
    queue.add("c1", "c")
    assert taken(queue) == ["c1"]
    queue.release("a")
    assert taken(queue) == ["a2"]


def test_a_thousand_creations_of_one_job_come_after_its_neighbours_next_one() -> None:
    queue: FairQueue[str] = FairQueue(slots=40, share=24)
    for _ in range(1000):
        queue.add("theirs", "a", "huge")
    assert len(taken(queue)) == 24
    queue.add("ours", "b", "small")
    assert taken(queue) == ["ours"]
    queue.add("beside it", "a", "small")
    queue.release("a")
    queue.release("a")
    assert taken(queue) == ["theirs", "beside it"]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("abcd"), st.sampled_from("xyz")),
        st.tuples(st.just("take"), st.just(""), st.just("")),
        st.tuples(st.just("release"), st.sampled_from("abcd"), st.just("")),
    ),
    max_size=200,
)


@given(steps, st.integers(1, 6), st.integers(1, 6))
def test_nothing_is_lost_and_no_limit_is_passed(
    actions: list[tuple[str, str, str]], slots: int, share: int
) -> None:
    queue: FairQueue[tuple[str, str, int]] = FairQueue(slots, share)
    held, waiting = Counter[str](), set[tuple[str, str, int]]()
    for number, (action, group, member) in enumerate(actions):
        if action == "add":
            waiting.add((group, member, number))
            queue.add((group, member, number), group, member)
        elif action == "release" and held[group]:
            held[group] -= 1
            queue.release(group)
        elif action == "take" and (item := queue.take()) is not None:
            assert item == min(one for one in waiting if one[:2] == item[:2]), "its own order"
            waiting.remove(item)
            held[item[0]] += 1
        assert len(queue) == len(waiting)
        assert max(held.values(), default=0) <= share
        assert held.total() <= slots
        could = held.total() < slots and any(held[group] < share for group, *_ in waiting)
        assert queue.has_next is could, "a place is never left empty"
