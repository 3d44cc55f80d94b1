"""References inside arguments, results and values, and the objects they keep alive."""

from __future__ import annotations

from typing import Any

import numpy as np

import raytwin as ray
from tests.references.conftest import nothing_left, stored, until

SIZE = 200_000
"""Bytes; too large for a message."""


def large(number: int = 1) -> Any:
    return np.full(SIZE, number, np.uint8)


def on(node: int, **options: Any) -> Any:
    """Return `remote` for one node."""
    return ray.remote(resources={f"N{node}": 1}, num_cpus=0, **options)


def first(value: Any) -> int:
    return int(value[0])


class Box:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.kept: Any = None

    def keep(self, refs: Any) -> str:
        self.kept = refs
        return "kept"

    def read(self) -> int:
        return sum(first(ray.get(ref)) for ref in self.kept)

    def pass_to(self, other: Any) -> Any:
        return ray.get(other.keep.remote(self.kept))

    def give(self) -> Any:
        return self.kept

    def drop(self) -> None:
        self.kept = None

    def make(self, number: int) -> Any:
        return [ray.put(large(number))]


# -- arguments -----------------------------------------------------------------


def test_a_task_reads_what_its_submitter_has_dropped(cluster: Any) -> None:
    def slow(refs: Any) -> int:
        ray.sleep(0.5)
        return first(ray.get(refs[0]))

    for node in (0, 1):
        ref = ray.put(large(3))
        answer = on(node)(slow).remote([ref])
        del ref
        assert ray.get(answer) == 3
        del answer
        nothing_left(cluster)


def test_a_task_reads_what_is_deep_inside_a_dict_and_in_a_range(cluster: Any) -> None:
    def read(item: Any) -> int:
        ray.sleep(0.2)
        return first(ray.get(item["a"]["b"][0]))

    refs = [ray.put(large(i)) for i in range(4)]
    answers = on(1)(read).map([{"a": {"b": [ref]}} for ref in refs])
    del refs
    assert ray.get(answers) == [0, 1, 2, 3]
    del answers
    nothing_left(cluster)


def test_an_actor_keeps_a_reference_past_the_call_that_brought_it(cluster: Any) -> None:
    box = on(1)(Box).remote()
    ref = ray.put(large(4))
    assert ray.get(box.keep.remote([ref])) == "kept"
    del ref
    ray.sleep(0.5)
    assert stored(cluster)
    assert ray.get(box.read.remote()) == 4
    ray.get(box.drop.remote())
    until(lambda: not stored(cluster))
    del box
    nothing_left(cluster)


def test_an_actor_that_never_reads_it_returns_it_when_it_ends(cluster: Any) -> None:
    box = on(1)(Box).remote()
    ref = ray.put(large(4))
    ray.get(box.keep.remote([ref]))
    del ref
    ray.sleep(0.5)
    assert stored(cluster)
    del box
    until(lambda: not stored(cluster))
    nothing_left(cluster)


def test_a_reference_goes_through_three_processes(cluster: Any) -> None:
    boxes = [on(node)(Box).remote() for node in (0, 1, 2)]
    ref = on(2)(large).remote(5)
    ray.get(boxes[0].keep.remote([ref]))
    del ref
    for giver, taker in ((0, 1), (1, 2)):
        ray.get(boxes[giver].pass_to.remote(boxes[taker]))
        ray.get(boxes[giver].drop.remote())
        ray.sleep(0.3)
    assert ray.get(boxes[2].read.remote()) == 5
    ray.get(boxes[2].drop.remote())
    until(lambda: not stored(cluster))
    del boxes
    nothing_left(cluster)


def test_nested_tasks_pass_a_reference_on(cluster: Any) -> None:
    def last(refs: Any) -> int:
        ray.sleep(0.3)
        return first(ray.get(refs[0]))

    def middle(refs: Any) -> Any:
        return on(2)(last).remote(refs)

    ref = ray.put(large(6))
    answer = on(1)(middle).remote([ref])
    del ref
    assert ray.get(ray.get(answer)) == 6
    del answer
    nothing_left(cluster)


def test_a_borrowed_reference_is_an_input_of_the_borrowers_task(cluster: Any) -> None:
    def middle(refs: Any) -> Any:
        answer = on(2)(first).remote(refs[0])
        refs.clear()
        return [answer]

    ref = on(0)(large).remote(7)
    answer = on(1)(middle).remote([ref])
    del ref
    [inner] = ray.get(answer)
    del answer
    assert ray.get(inner) == 7
    del inner
    nothing_left(cluster)


# -- results -------------------------------------------------------------------


def test_a_result_keeps_what_is_inside_it(cluster: Any) -> None:
    def make() -> Any:
        return [ray.put(large(8)), on(2)(large).remote(9)]

    for node in (0, 1):
        outer = on(node)(make).remote()
        ray.wait([outer])
        ray.sleep(0.5)
        put, made = ray.get(outer)
        del outer
        ray.sleep(0.5)
        assert (first(ray.get(put)), first(ray.get(made))) == (8, 9)
        del put
        until(lambda: stored(cluster) <= 2)
        assert first(ray.get(made)) == 9
        del made
        nothing_left(cluster)


def test_an_unread_result_frees_its_contained_objects(cluster: Any) -> None:
    def make() -> Any:
        return [ray.put(large(8))]

    outer = on(1)(make).remote()
    ray.wait([outer])
    ray.sleep(0.3)
    assert stored(cluster) == 1
    del outer
    until(lambda: not stored(cluster))
    nothing_left(cluster)


def test_an_argument_comes_back_inside_the_result(cluster: Any) -> None:
    def same(refs: Any) -> Any:
        return refs

    for node in (0, 1):
        ref = ray.put(large(9))
        outer = on(node)(same).remote([ref])
        del ref
        ray.wait([outer])
        ray.sleep(0.4)
        assert first(ray.get(ray.get(outer)[0])) == 9
        del outer
        nothing_left(cluster)


def test_large_values_and_streams_have_references_inside(cluster: Any) -> None:
    def make() -> Any:
        return large(1), [ray.put(large(2))]

    def items() -> Any:
        for number in range(3):
            yield [ray.put(large(number))]

    whole = on(1)(make).remote()
    one, two = on(1, num_returns=2)(make).remote()
    ray.wait([whole, one, two], num_returns=3)
    ray.sleep(0.4)
    assert first(ray.get(ray.get(whole)[1][0])) == 2
    assert first(ray.get(ray.get(two)[0])) == 2
    refs = list(on(1)(items).options(num_returns="streaming").remote())
    ray.sleep(0.4)
    assert [first(ray.get(ray.get(ref)[0])) for ref in refs] == [0, 1, 2]
    dynamic = on(1)(items).options(num_returns="dynamic").remote()
    assert [first(ray.get(ray.get(ref)[0])) for ref in ray.get(dynamic)] == [0, 1, 2]
    del whole, one, two, refs, dynamic
    nothing_left(cluster)


def test_an_actor_passes_on_a_borrowed_reference(cluster: Any) -> None:
    box = on(1)(Box).remote()
    ref = on(2)(large).remote(3)
    ray.get(box.keep.remote([ref]))
    del ref
    given = box.give.remote()
    ray.wait([given])
    ray.get(box.drop.remote())
    ray.sleep(0.4)
    [ref] = ray.get(given)
    del given
    ray.sleep(0.4)
    assert first(ray.get(ref)) == 3
    del ref, box
    nothing_left(cluster)


# -- put -----------------------------------------------------------------------


def test_a_put_value_keeps_what_is_inside_it(cluster: Any) -> None:
    inner = ray.put(large(5))
    outer = ray.put({"inner": inner, "more": large(6)})
    outermost = ray.put([outer])
    del inner, outer
    ray.sleep(0.4)
    assert stored(cluster) == 2
    value = ray.get(ray.get(outermost)[0])
    del outermost
    ray.sleep(0.4)
    assert first(ray.get(value["inner"])) == 5
    del value
    nothing_left(cluster)


def test_a_nested_put_is_read_on_another_node(cluster: Any) -> None:
    box = on(1)(Box).remote()
    outer = ray.put([ray.put(large(5))])
    ray.get(box.keep.remote(outer))
    del outer
    ray.sleep(0.4)
    assert ray.get(box.read.remote()) == 5
    ray.get(box.drop.remote())
    until(lambda: not stored(cluster))
    del box
    nothing_left(cluster)


def test_many_references_inside_one_value(cluster: Any) -> None:
    def read(outer: Any) -> int:
        return sum(first(ray.get(ref)) for ref in outer)

    outer = ray.put([ray.put(large(i)) for i in range(20)])
    ray.sleep(0.3)
    assert ray.get(on(1)(read).remote(outer)) == sum(range(20))
    del outer
    nothing_left(cluster)
