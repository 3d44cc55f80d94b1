"""Fault plans: the faults of a cluster and their times, and the injectors that cause them.

A *plan* is a list of *steps*, as data: an *action* (`actions`, `parameters`), a *target*
(`targets`), a time, and what is expected in spite of them (`expectations`). `plan` checks it,
`plan_files` reads it from YAML or JSON with the line of each mistake, `plan_schema` publishes
its schema.

A target carries an action out by one operation of the cluster (`cluster_operations`), which has the
same name on every backend. A cluster class without the operation cannot carry the action out,
so a plan is refused before its first step. The `injector` calls the operations when steps are due.
Afterwards `recovery_summary` states, from the GCS's event log and the timeline, how the
cluster has recovered.

The files in `plans/` are the plans that have a name.
"""

from __future__ import annotations
