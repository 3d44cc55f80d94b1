"""What every scenario is made of: its shape, its result and its timeline.

A scenario is a module with a `Scenario`, whose ``run`` takes a `Request` and returns an
`Outcome`: rows, metrics, checks, findings and a timeline. The package knows neither a figure of
the paper nor how scenarios are chosen and run; `figures`, `bench` and `measure` build on it, and
`reports` reads what it writes.

State: only files. `DIR/<scenario>/<backend>/` holds ``result.json``, ``rows.csv`` and
``timeline.json``; a result is written as a whole or not at all.

Modules, the lower first:

- `scenario`: the shape of a scenario, of a request and of an outcome; settings and their errors.
- `results`: writes results and reads them back; raises ResultError for a damaged one.
- `measured_host`: versions and host of a run.
- `excerpt`: keeps a timeline short enough for a browser.
- `run_trace`: the tasks of a run as events of Chrome's trace format.
- `execution_record`: a task writes down, from inside, that it has begun.
- `executions`: counts how often tasks took effect, and where, from these records.
"""

from __future__ import annotations
