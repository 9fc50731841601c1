from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trainjob.controller.queue import LONGEST_RETRY, PUT_OFF_SECONDS, WorkQueue


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def build_queue() -> tuple[WorkQueue[str], Clock]:
    clock = Clock()
    return WorkQueue(clock), clock


def test_a_key_waits_once_however_often_it_is_added() -> None:
    queue, _ = build_queue()
    for _ in range(3):
        queue.add("a")
    assert queue.take() == "a"
    assert queue.take() is None


def test_a_key_that_is_worked_on_is_handed_out_again_only_afterwards() -> None:
    queue, _ = build_queue()
    queue.add("a")
    assert queue.take() == "a"
    queue.add("a")
    assert queue.take() is None
    queue.done("a")
    assert queue.take() == "a"
    queue.done("a")
    assert queue.take() is None


def test_keys_come_in_the_order_in_which_they_were_added() -> None:
    queue, _ = build_queue()
    for key in "cab":
        queue.add(key)
    assert [queue.take(), queue.take(), queue.take()] == ["c", "a", "b"]


def test_a_key_that_rests_is_not_handed_out_whatever_happens() -> None:
    queue, clock = build_queue()
    queue.add("a")
    assert queue.take() == "a"
    queue.add("a")
    queue.done("a", rest=2)
    queue.add("a")
    clock.now = 1
    assert queue.take() is None
    assert queue.next_due() == 1
    clock.now = 2
    assert queue.take() == "a"
    queue.done("a")
    queue.add("a")
    assert queue.take() == "a"


def test_a_key_that_is_put_off_comes_after_others_but_soon() -> None:
    queue, clock = build_queue()
    queue.add("a")
    queue.add("b")
    assert queue.take() == "a"
    queue.add("a")  # its own writes
    queue.put_off("a")
    queue.done("a")
    queue.add("c")
    assert [queue.take(), queue.take(), queue.take()] == ["b", "c", None]
    clock.now = PUT_OFF_SECONDS
    assert queue.take() == "a"


def test_a_key_that_is_put_off_comes_at_once_where_no_other_waits_or_something_happens() -> None:
    queue, _ = build_queue()
    queue.add("a")
    assert queue.take() == "a"
    queue.put_off("a")
    queue.done("a")
    queue.add("b")
    assert queue.take() == "a"
    queue.put_off("a")
    queue.done("a")
    queue.add("a")
    assert [queue.take(), queue.take()] == ["b", "a"]


def test_the_wait_of_a_key_is_from_when_it_is_due_until_it_is_taken() -> None:
    clock, waits = Clock(), []
    queue = WorkQueue[str](clock, on_taken=waits.append)
    queue.add("a")
    queue.add_after("b", 5)
    clock.now = 7
    assert [queue.take(), queue.take()] == ["a", "b"]
    queue.add("a")  # while it is worked on
    clock.now = 9
    queue.done("a")
    clock.now = 10
    assert queue.take() == "a"
    assert waits == [7, 0, 1]


def test_a_delayed_key_is_due_in_its_time() -> None:
    queue, clock = build_queue()
    queue.add_after("a", 5)
    assert queue.take() is None
    assert queue.next_due() == 5
    clock.now = 5
    assert queue.take() == "a"
    assert queue.next_due() is None


def test_the_earlier_of_two_delays_counts() -> None:
    queue, clock = build_queue()
    queue.add_after("a", 5)
    queue.add_after("a", 2)
    queue.add_after("a", 9)
    clock.now = 2
    assert queue.take() == "a"
    queue.done("a")
    clock.now = 20
    assert queue.take() is None, "one delay, one hand-out"


def test_failures_wait_longer_and_success_forgets_them() -> None:
    queue, _ = build_queue()
    waits = [queue.retry("a") for _ in range(30)]
    assert waits[:4] == [0.05, 0.1, 0.2, 0.4]
    assert waits == sorted(waits)
    assert waits[-1] == LONGEST_RETRY
    queue.forget("a")
    assert queue.retry("a") == 0.05


def test_who_waits_is_woken() -> None:
    woken: list[int] = []
    queue: WorkQueue[str] = WorkQueue(lambda: 0.0, wake=lambda: woken.append(1))
    queue.add("a")
    queue.add_after("b", 1)
    assert len(woken) == 2


operations = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("abc")),
        st.tuples(st.just("after"), st.sampled_from("abc")),
        st.tuples(st.just("take"), st.just("")),
        st.tuples(st.just("done"), st.sampled_from("abc")),
        st.tuples(st.just("tick"), st.just("")),
    ),
    max_size=60,
)


@given(operations)
def test_no_key_is_lost_and_none_is_handed_out_twice(steps: list[tuple[str, str]]) -> None:
    queue, clock = build_queue()
    wanted: set[str] = set()
    working: set[str] = set()
    for step, key in steps:
        if step == "add":
            queue.add(key)
            wanted.add(key)
        elif step == "after":
            queue.add_after(key, 2)
            wanted.add(key)
        elif step == "tick":
            clock.now += 1
        elif step == "done" and key in working:
            working.discard(key)
            queue.done(key)
        elif step == "take" and (taken := queue.take()) is not None:
            assert taken not in working
            working.add(taken)
            wanted.discard(taken)
    for key in working:
        queue.done(key)
    clock.now += 2
    while (taken := queue.take()) is not None:
        wanted.discard(taken)
        queue.done(taken)
    assert not wanted


def test_far_times_that_nearer_ones_replace_are_not_kept_until_they_are_over() -> None:
    """A job with a deadline in a week that is looked at each half minute in between, beside another one."""
    queue, clock = build_queue()
    queue.add_after("b", 6 * 86400)
    for _ in range(5000):
        queue.add_after("a", 7 * 86400)
        queue.add_after("a", 30)
        clock.now += 30
        assert queue.take() == "a"
        queue.done("a")
    assert len(queue._later) < 200
    clock.now = 6 * 86400
    assert queue.take() == "b"


def test_namespaces_take_turns_and_none_has_all_the_workers() -> None:
    woken: list[int] = []
    queue: WorkQueue[str] = WorkQueue(
        lambda: 0.0, wake=lambda: woken.append(1), group_of=lambda key: key[0], share=2
    )
    for key in ("a1", "a2", "a3", "a4", "b1"):
        queue.add(key)
    assert [queue.take(), queue.take(), queue.take()] == ["a1", "b1", "a2"]
    assert len(queue) == 2
    assert queue.take() is None
    assert queue.next_due() is None, "waiting for one of them to be done, not again and again"
    woken.clear()
    queue.done("a1")
    assert woken
    assert queue.next_due() == 0.0
    assert queue.take() == "a3"
