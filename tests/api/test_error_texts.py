"""Errors whose text cannot be encoded, as of a file's name, still report the cause."""

from __future__ import annotations

import pytest

import raytwin as ray

pytestmark = pytest.mark.usefixtures("backend")

NAME = "undecodable \udcff"
TOLD = r"undecodable \\udcff"
LIMIT_S = 60.0


@ray.remote(max_retries=0)
def fail() -> None:
    raise ValueError(NAME)


@ray.remote(num_cpus=0)
class Refusal:
    def __init__(self) -> None:
        raise ValueError(NAME)

    def method(self) -> None:
        """It is never called."""


@ray.remote(num_cpus=0)
class Leaves:
    async def leave(self) -> None:
        raise SystemExit(NAME)


@ray.remote(num_cpus=0, max_concurrency=2)
class LeavesAThread:
    def leave(self) -> None:
        raise SystemExit(NAME)


def test_a_tasks_error_is_its_own() -> None:
    with pytest.raises(ValueError, match="undecodable") as caught:
        ray.get(fail.remote(), timeout=LIMIT_S)
    assert caught.value.cause.args == (NAME,)


def test_a_constructors_error_is_in_the_actors_error() -> None:
    with pytest.raises(ray.exceptions.ActorDiedError, match=TOLD):
        ray.get(Refusal.remote().method.remote(), timeout=LIMIT_S)


@pytest.mark.parametrize("leaves", [Leaves, LeavesAThread])
def test_the_cause_of_an_actors_end_is_in_its_error(leaves: ray.actor.ActorClass) -> None:
    with pytest.raises(ray.exceptions.ActorDiedError, match=TOLD):
        ray.get(leaves.remote().leave.remote(), timeout=LIMIT_S)
