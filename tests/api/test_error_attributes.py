"""The attributes of errors, which programs written for Ray read."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import (
    ActorAlreadyExistsError,
    ActorDiedError,
    ObjectLostError,
    TaskCancelledError,
    UnserializableException,
)
from raytwin.runtime.api.failures import exception_of
from raytwin.runtime.control.messages.errors import (
    ActorDeath,
    Cancellation,
    DeathCause,
    Loss,
    LossCause,
)

pytestmark = pytest.mark.usefixtures("backend")


class Unloadable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(one)


@ray.remote
class Actor:
    def __init__(self, fails: bool = False) -> None:
        if fails:
            raise ValueError("no")

    def leave(self) -> None:
        ray.actor.exit_actor()


@ray.remote
class Slowly:
    async def __init__(self, value: int) -> None:
        self.value = await self.soon(value)

    async def soon(self, value: int) -> int:
        return value

    async def get(self) -> int:
        return self.value


@ray.remote
def fail(kind: int) -> None:
    raise (ValueError("a", 7), Unloadable(1, 2))[kind]


@ray.remote
def named() -> Any:
    here = ray.get_runtime_context()
    return here.get_task_name(), here.get_task_function_name()


def error_of(kind: type[Exception], ref: Any) -> Any:
    with pytest.raises(kind) as caught:
        ray.get(ref, timeout=60)
    return caught.value


def test_an_actors_error_names_it() -> None:
    actor, refusal = Actor.remote(), Actor.remote(True)
    for one, failed in ((actor, False), (refusal, True)):
        error = error_of(ActorDiedError, one.leave.remote())
        assert error.actor_id == one._actor_id.hex()
        assert error.error_msg == str(error) and "\0" not in str(error)
        assert error.actor_init_failed is failed and not error.preempted
        again = pickle.loads(pickle.dumps(error))
        assert (again.actor_id, str(again)) == (error.actor_id, str(error))


def test_an_actors_error_in_that_of_another_keeps_its_actor_to_itself() -> None:
    root = ActorDeath(DeathCause.KILLED, "Input", b"a" * 12)
    error = exception_of(ActorDeath(DeathCause.REPLAY_INPUT_FAILED, "Actor", b"b" * 12, root=root))
    assert isinstance(error, ActorDiedError) and error.actor_id == (b"b" * 12).hex()
    assert str(error).endswith(": ActorDiedError: Input was killed by kill()")


@pytest.mark.parametrize("cause", DeathCause)
def test_every_cause_of_an_actors_death_has_a_text(cause: DeathCause) -> None:
    error = exception_of(ActorDeath(cause, "Actor", detail="detail", outgrown=True))
    assert str(error).startswith("Actor ") and "actor_log_bytes_max" in str(error)


def test_a_system_error_carries_its_failure_as_data() -> None:
    actor = Actor.remote()
    ray.kill(actor)
    error = error_of(ActorDiedError, actor.leave.remote())
    assert error.failure == ActorDeath(DeathCause.KILLED, "Actor", actor._actor)
    assert pickle.loads(pickle.dumps(error)).failure == error.failure


def test_errors_of_objects_name_them() -> None:
    never = fail.options(resources={"none": 1}).remote(0)
    ray.cancel(never)
    error = error_of(TaskCancelledError, never)
    assert error.task_id == never.task_id() and error.error_message == str(error)
    assert error.failure == Cancellation("fail")
    lost = exception_of(Loss(LossCause.RELEASED), bytes(18))
    assert isinstance(lost, ObjectLostError) and lost.object_ref_hex == bytes(18).hex()
    assert (lost.call_site, lost.owner_address) == ("", None)


def test_errors_of_tasks_have_their_cause() -> None:
    error = error_of(ValueError, fail.remote(0))
    assert error.args == (error.cause,) and error.cause.args == ("a", 7)
    assert isinstance(error.as_instanceof_cause(), ValueError)
    error = error_of(UnserializableException, fail.remote(1))
    assert "Unloadable" in str(error) and "in fail" in str(error)


def test_a_name_that_is_taken() -> None:
    kept = Actor.options(name="taken").remote()
    with pytest.raises(ActorAlreadyExistsError, match="taken"):
        Actor.options(name="taken").remote()
    del kept


def test_further_attributes() -> None:
    assert ray.get(Slowly.remote(5).get.remote(), timeout=60) == 5
    name, function = ray.get(named.options(name="other").remote(), timeout=60)
    assert name == "other" and function.endswith(".named")
    ref = named.remote()
    with pytest.raises(ValueError, match="tuple"):
        ray.get((ref, ref))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="tuple"):
        ray.wait((ref,))  # type: ignore[arg-type]
    for option in ("num_cpus", "num_gpus"):
        with pytest.raises(ValueError, match=f"{option} is 0 or more, not -1"):
            named.options(**{option: -1})
    with pytest.raises(TypeError, match="no subclasses"):

        class Sub(Actor):  # type: ignore[misc, valid-type]
            pass
