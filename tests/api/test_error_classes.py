"""A task's error is an instance of its cause's class, however that class is made."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

import raytwin as ray
from raytwin.runtime.api.exceptions import RayTaskError, make_task_error

pytestmark = pytest.mark.usefixtures("backend")
LIMIT_S = 60.0


class Numbered(Exception):
    """Its ``__new__`` wants an argument of its own."""

    code: int

    def __new__(cls, code: int) -> Numbered:
        made = super().__new__(cls, code)
        made.code = code
        return made


class Tolerant(Exception):
    """Its ``__new__`` would take what is not meant for it."""

    code: Any

    def __new__(cls, *code: Any) -> Tolerant:
        made = super().__new__(cls, *code)
        made.code = code
        return made


class NumberedSystem(OSError):
    def __new__(cls, code: int, text: str = "system") -> NumberedSystem:
        return super().__new__(cls, code, text)

    def __init__(self, code: int, text: str = "system") -> None:
        super().__init__(code, text)


class Group(ExceptionGroup[Exception]):
    def derive(self, excs: Any) -> Group:
        return Group(self.message, excs)


class Fixed(Exception):
    @property
    def args(self) -> Any:  # type: ignore[override]
        return ("fixed",)


@ray.remote(max_retries=0)
def fail(kind: str) -> None:
    raise {
        "numbered": lambda: Numbered(3),
        "tolerant": lambda: Tolerant(3),
        "system": lambda: NumberedSystem(3),
        "group": lambda: ExceptionGroup("all", [ValueError(1), KeyError(2)]),
        "own group": lambda: Group("all", [ValueError(1), KeyError(2)]),
        "fixed": Fixed,
    }[kind]()


def of(kind: str) -> Any:
    with pytest.raises(RayTaskError) as caught:
        ray.get(fail.remote(kind), timeout=LIMIT_S)
    return caught.value


def test_a_class_may_have_its_own_new() -> None:
    error = of("numbered")
    assert isinstance(error, Numbered) and error.code == 3 and error.cause.code == 3
    assert isinstance(of("tolerant"), Tolerant) and of("tolerant").code == (3,)
    error = of("system")
    assert isinstance(error, NumberedSystem) and (error.errno, error.strerror) == (3, "system")
    error = of("fixed")
    assert isinstance(error, Fixed) and error.args == ("fixed",)
    for again in (copy.copy(of("numbered")), pickle.loads(pickle.dumps(of("numbered")))):
        assert isinstance(again, Numbered) and again.code == 3


@pytest.mark.parametrize(("kind", "cls"), [("group", ExceptionGroup), ("own group", Group)])
def test_a_group_is_a_group(kind: str, cls: type[ExceptionGroup[Exception]]) -> None:
    error = of(kind)
    assert isinstance(error, cls) and error.message == "all"
    assert [type(one) for one in error.exceptions] == [ValueError, KeyError]
    rest = []
    try:
        raise error
    except* ValueError as some:
        assert isinstance(some, cls) and [one.args for one in some.exceptions] == [(1,)]
    except* KeyError as others:
        rest = list(others.exceptions)
    assert [one.args for one in rest] == [(2,)]


def test_a_class_that_cannot_be_a_base_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Final(Exception):
        def __init_subclass__(cls) -> None:
            raise ValueError("it is final")

    errors = [make_task_error("f", "why", Final()) for _ in range(2)]
    assert [type(error) for error in errors] == [RayTaskError, RayTaskError]
    (line,) = [record.getMessage() for record in caplog.records]
    assert "Final is raised as a plain RayTaskError: it is final" in line
