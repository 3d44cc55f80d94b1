"""`ids`: deterministic, distinct, and of the promised lengths."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raytwin.runtime.control.core import ids

ARRAYS = st.binary(min_size=ids.ARRAY_BYTES, max_size=ids.ARRAY_BYTES)
INDICES = st.integers(0, ids.ELEMENTS_MAX)
RETURNS = st.integers(0, ids.RETURNS_MAX)


@given(ARRAYS, INDICES, RETURNS)
def test_object_ids_come_apart_again(array: bytes, index: int, ret: int) -> None:
    oid = ids.object_id(array, index, ret)
    assert len(oid) == ids.OBJECT_BYTES
    assert ids.split_object_id(oid) == (array, index, ret)
    assert oid.startswith(ids.task_id(array, index))


@given(ARRAYS, INDICES, INDICES, RETURNS, RETURNS)
def test_object_ids_sort_by_element(array: bytes, a: int, b: int, r: int, s: int) -> None:
    # The GCS tells whose object lies in a range by comparing IDs.
    assert (ids.object_id(array, a, r) < ids.object_id(array, b, s)) == ((a, r) < (b, s))


def test_children_are_the_same_when_a_parent_runs_again_and_never_another_s() -> None:
    parents = [ids.root_task_id("job"), ids.root_task_id("other"), ids.task_id(b"a" * 12, 3)]
    made = [f(p, n) for p in parents for n in range(50) for f in (ids.array_id, ids.put_id)]
    again = [f(p, n) for p in parents for n in range(50) for f in (ids.array_id, ids.put_id)]
    assert made == again
    assert len(set(made)) == len(made)
    assert {len(array) for array in made} == {ids.ARRAY_BYTES}


def test_functions_are_known_by_their_content() -> None:
    assert ids.function_id(b"x") == ids.function_id(b"x") != ids.function_id(b"y")
