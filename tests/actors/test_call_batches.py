"""Calls made in a loop travel in batches; each remains a call of its own."""

from __future__ import annotations

from typing import Any

import pytest

import raytwin as ray


@ray.remote
class Mixed:
    """What it answers is of every kind, and tells the order in which it was asked."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def plain(self, item: Any = None) -> int:
        self.seen.append(item)
        return len(self.seen)

    def other(self, item: Any) -> str:
        self.seen.append(item)
        return f"other {item}"

    def growing(self) -> list[Any]:
        return self.seen

    def fails(self, item: int) -> int:
        self.seen.append(item)
        if item % 7 == 3:
            raise KeyError(item)
        return item

    def large(self, nbytes: int) -> bytes:
        return bytes(nbytes)

    def back(self, item: Any) -> Any:
        return item

    def slow(self, seconds: float) -> float:
        ray.sleep(seconds)
        return ray.now()


def test_calls_of_every_kind_keep_their_order(cluster: Any) -> None:
    mixed = Mixed.remote()
    refs, expected = [], []
    for n in range(200):
        if n % 13 == 5:
            refs.append(mixed.other.remote(n))
            expected.append(f"other {n}")
        elif n % 17 == 3:
            refs.append(mixed.plain.remote(ray.put(n)))
            expected.append(n + 1)
        else:
            refs.append(mixed.plain.remote(n))
            expected.append(n + 1)
    assert ray.get(refs) == expected
    assert ray.get(mixed.growing.remote()) == list(range(200))


def test_an_error_in_the_middle_is_one_calls_error(cluster: Any) -> None:
    mixed = Mixed.remote()
    refs = [mixed.fails.remote(n) for n in range(60)]
    for n, ref in enumerate(refs):
        if n % 7 == 3:
            with pytest.raises(KeyError) as raised:
                ray.get(ref)
            assert "in fails" in str(raised.value)
        else:
            assert ray.get(ref) == n
    with pytest.raises(KeyError):
        ray.get(refs)
    assert ray.get(mixed.growing.remote()) == list(range(60))


def test_a_value_is_what_it_was_when_the_call_ended(cluster: Any) -> None:
    mixed = Mixed.remote()
    refs = []
    for n in range(20):
        mixed.plain.remote(n)
        refs.append(mixed.growing.remote())
    assert [len(seen) for seen in ray.get(refs)] == list(range(1, 21))


def test_each_get_returns_a_value_of_its_own(cluster: Any) -> None:
    mixed = Mixed.remote()
    texts = [mixed.back.remote("x" * n) for n in range(10)]
    lists = [mixed.back.remote([n]) for n in range(10)]
    assert ray.get([*texts, *texts]) == 2 * ["x" * n for n in range(10)]
    twice = ray.get([lists[0], lists[0]])
    twice[0].append("mine")
    assert twice[1] == [0] and ray.get(lists[0]) == [0]


def test_plain_values_come_back_as_they_were(cluster: Any) -> None:
    mixed = Mixed.remote()
    values = [
        0, -1, 2**63, 10**4000, True, None, 1.5, float("inf"), "", "ä\ud800", b"", bytes(200),
        bytes(90_000), "y" * 30_000, (), (1, [2]), {"a": b"b"}, type(None),
    ]  # fmt: skip
    found = ray.get([mixed.back.remote(value) for value in values])
    assert found == values and list(map(type, found)) == list(map(type, values))


def test_large_values_between_small_ones(cluster: Any) -> None:
    mixed = Mixed.remote()
    refs = []
    for _ in range(10):
        refs += [mixed.plain.remote(), mixed.large.remote(300_000), mixed.back.remote("s")]
    values = ray.get(refs)
    assert values[::3] == list(range(1, 11))
    assert [len(value) for value in values[1::3]] == [300_000] * 10
    assert values[2::3] == ["s"] * 10


def test_batched_results_can_be_inputs_and_borrowed(cluster: Any) -> None:
    mixed, second = Mixed.remote(), Mixed.remote()
    refs = [mixed.plain.remote() for _ in range(50)]

    @ray.remote(scheduling_strategy="SPREAD")
    def total(inside: list[Any], *numbers: int) -> tuple[int, int]:
        return sum(ray.get(inside)), sum(numbers)

    assert (
        ray.get([total.remote(refs[:25], *refs[25:]) for _ in range(4)])
        == [(sum(range(1, 26)), sum(range(26, 51)))] * 4
    )
    assert ray.get([second.back.remote(ref) for ref in refs]) == list(range(1, 51))


def test_some_references_of_a_batch_are_dropped(cluster: Any) -> None:
    mixed = Mixed.remote()
    for _ in range(100):
        mixed.plain.remote()
    kept = [ref for n, ref in enumerate([mixed.plain.remote() for _ in range(100)]) if n % 10 == 0]
    assert ray.get(mixed.plain.remote()) == 201
    assert ray.get(kept) == list(range(101, 201, 10))


@pytest.mark.parametrize("node", [0, 1])
def test_callers_on_either_node(cluster: Any, node: int) -> None:
    where = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(str(node), soft=False)
    mixed = Mixed.options(scheduling_strategy=where).remote()

    @ray.remote
    def caller(number: int) -> bool:
        found = ray.get([mixed.plain.remote((number, n)) for n in range(100)])
        return found == sorted(found)

    assert all(ray.get([caller.remote(number) for number in range(3)]))
    assert ray.get([mixed.back.remote(n) for n in range(100)]) == list(range(100))
    seen = ray.get(mixed.growing.remote())
    for number in range(3):
        assert [n for who, n in seen if who == number] == list(range(100))


def test_waiting_and_timeouts(cluster: Any) -> None:
    mixed = Mixed.remote()
    ray.get(mixed.plain.remote())
    quick = [mixed.plain.remote() for _ in range(5)]
    slow = mixed.slow.remote(1.0)
    behind = [mixed.plain.remote() for _ in range(5)]
    ready, left = ray.wait([*quick, slow, *behind], num_returns=11, timeout=0.5)
    assert ready == quick and left == [slow, *behind]
    with pytest.raises(ray.exceptions.GetTimeoutError, match="6 of 11 values"):
        ray.get([*quick, slow, *behind], timeout=0.1)
    assert [ref.future().result(timeout=60) for ref in behind] == list(range(7, 12))


def test_fast_replies_do_not_wait_for_a_slow_later_call(cluster: Any) -> None:
    mixed = Mixed.remote()
    ray.get(mixed.plain.remote())
    began_s = ray.now()
    quick = [mixed.slow.remote(0.0) for _ in range(10)]
    slow = mixed.slow.remote(2.0)
    ended_s = ray.get(quick)[-1]
    # The slow one still runs.
    assert ray.wait([slow], timeout=0)[0] == []
    assert ray.get(slow) - max(ended_s, began_s) >= 2.0
