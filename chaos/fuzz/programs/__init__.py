"""Random programs: their operations as data, and their interpreter.

A program is a `Body`: operations on numbered variables, in order. An operation submits a task
or a call of an actor (`Call`, which may have a body of its own), puts a value, gets or waits,
or drops variables. A body holds no code, so a generator can draw it, a report can print it, and
a worker receives it as an argument.

The interpreter defines the meaning of a program. It runs over an *engine* with a method for each
operation: `run.api_engine` submits through the public API, `oracle.sequential` runs each task in
place. So the two can differ only in the execution of a program.

Promises:

- Only the key and the inputs of a task decide its value: no clock, no node, no random number. A
  second execution of the task makes the same value.
- An actor's state is the fold of its calls. A call that takes effect twice, or out of its
  caller's order, raises.
- A driver collects a list of outcomes, one for each value that it gets: the digest of the
  value, the `Boom` that the program raises on purpose, or another exception.

Modules, the lower first:

- `program`: the operations, tasks and actors of a program, and their names in errors.
- `outcomes`: values, their digests, and the items of streams.
- `parts`: smaller programs made of a program's operations.
- `interpreter`: executes bodies, tasks and actors' calls over an engine.
"""

from __future__ import annotations
