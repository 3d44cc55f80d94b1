"""What the tasks of these tests run, and what must come out of it.

A task's body is a dictionary, all keys optional:
  salt    number that goes into the value
  s       seconds that it runs
  size    bytes of its value
  fail    it raises this text
  steps   a program (below) that it runs; the sum goes into its value
  returns how many values it returns
  tell    calls of actors that it makes: [actor, tag, retries, restarts, bytes of value] each
  s_after seconds that it runs after that, when it has let go of their values
and for a call of an actor:
  tag     number that the actor remembers; its value is how many it has then
  read    its value is all it remembers

A program is a list of steps:
  {"do": "call", "body": ..., "deps": [[step, element], ...], "demand": ...}
  {"do": "map", "bodies": [...], "chunk": ...}
  {"do": "put", "salt": ..., "size": ...}
  {"do": "get", "step": ...}          waits for all elements of a step
  {"do": "sleep", "s": ...}
  {"do": "drop", "step": ...}         waits for a step, then lets go of its references
  {"do": "forget", "step": ...}       lets go of them at once; it does not count
"""

from __future__ import annotations

from typing import Any

from raytwin.runtime.control.messages import USER_ERROR
from tests.control.shell import Ref, Shell
from tests.control.values import Code, TaskFailed, number_of

MODULUS = 1_000_003


def run_body(shell: Shell, body: Any, inputs: list[Any]) -> Code:
    """Run a task's body and return its value (or values)."""
    total = body.get("salt", 0) + sum(3 * number_of(value) for value in inputs)
    if body.get("s"):
        yield body["s"]
    if "steps" in body:
        total += yield from run_program(shell, body["steps"])
    if "tell" in body:
        refs = [
            shell.tell(actor, {"tag": tag, "size": size}, retries=retries, restarts=restarts)
            for actor, tag, retries, restarts, size in body["tell"]
        ]
        try:
            yield from shell.get([ref.oid for ref in refs])
        finally:
            for ref in refs:
                ref.drop()
    if body.get("s_after"):
        yield body["s_after"]
    if shell.history is not None and "tag" in body:
        shell.history.append(body["tag"])
        total = len(shell.history)
    if shell.history is not None and "read" in body:
        return {"history": shell.history}
    if "fail" in body:
        raise TaskFailed(USER_ERROR, body["fail"])
    total %= MODULUS
    values = [
        [total + ret, body["size"]] if body.get("size", 0) else total + ret
        for ret in range(body.get("returns", 1))
    ]
    return values if "returns" in body else values[0]


def run_program(shell: Shell, steps: list[Any]) -> Code:
    """Run a program, let go of all of it, and return the sum of its values."""
    objects: dict[int, list[bytes]] = {}
    refs: dict[int, list[Ref]] = {}
    numbers: dict[int, list[int]] = {}
    failed: TaskFailed | None = None

    def collect(at: int) -> Code:
        if at not in numbers:
            got = yield from shell.get(objects[at])
            numbers[at] = [number_of(value) for value in got]

    for at, step in enumerate(steps):
        what = step["do"]
        if what == "call":
            deps = [objects[d][element % len(objects[d])] for d, element in step.get("deps", ())]
            body = step["body"]
            refs[at] = shell.submit(
                body, deps=deps, returns=body.get("returns", 1),
                demand=step.get("demand", "CPU:1"), retries=step.get("retries", 3),
            )  # fmt: skip
            objects[at] = [ref.oid for ref in refs[at]]
        elif what == "map":
            objects[at] = shell.map(
                step["bodies"], chunk=step.get("chunk", 1 << 30),
                demand=step.get("demand", "CPU:1"), retries=step.get("retries", 3),
            )  # fmt: skip
            refs[at] = [Ref(shell, objects[at][0])]
        elif what == "put":
            size = step.get("size", 0)
            value = [step["salt"], size] if size else step["salt"]
            ref = yield from shell.put(value, size)
            objects[at], refs[at] = [ref.oid], [ref]
        elif what == "sleep":
            yield step["s"]
        elif what == "forget":
            target = step["step"]
            numbers.pop(target, None)
            del objects[target]
            for ref in refs.pop(target):
                ref.drop()
        else:
            target = step["step"]
            try:
                yield from collect(target)
            except TaskFailed as error:
                failed = failed or error
                numbers[target] = [0] * len(objects[target])
            if what == "drop":
                for ref in refs.pop(target, ()):
                    ref.drop()
    for at in objects:
        try:
            yield from collect(at)
        except TaskFailed as error:
            failed = failed or error
    for held in refs.values():
        for ref in held:
            ref.drop()
    if failed is not None:
        raise failed
    return sum(sum(row) for row in numbers.values())


def sequential(steps: list[Any]) -> int:
    """Return what `run_program` must return: the oracle."""
    values: dict[int, list[int]] = {}
    for at, step in enumerate(steps):
        if step["do"] == "call":
            inputs = [values[d][e % len(values[d])] for d, e in step.get("deps", ())]
            values[at] = _sequential_body(step["body"], inputs)
        elif step["do"] == "map":
            values[at] = [_sequential_body(body, [])[0] for body in step["bodies"]]
        elif step["do"] == "put":
            values[at] = [step["salt"]]
        elif step["do"] == "forget":
            del values[step["step"]]
    return sum(sum(row) for row in values.values())


def _sequential_body(body: Any, inputs: list[int]) -> list[int]:
    total = body.get("salt", 0) + sum(3 * value for value in inputs)
    if "steps" in body:
        total += sequential(body["steps"])
    return [total % MODULUS + ret for ret in range(body.get("returns", 1))]
