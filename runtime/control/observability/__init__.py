"""Observability: the timeline of executed tasks, and the queries of clients.

The paper's GCS keeps an event log and feeds debugging and profiling tools. Here each node keeps
rows of the ranges that it ran, in memory and bounded, and a query gathers them. Nothing is sent
to the GCS for a task, so the timeline costs one tuple per executed range.

State
-----
* node: the last ``timeline_ranges_max`` ranges (`RangeLog`), the last transfers (`PullManager`);
* global scheduler: its last placements;
* GCS: the event log, jobs, names of actors (`gcs`).

Messages
--------
Query       client -> its node -> every living node, the GCS, or the global scheduler
QueryReply  the way back, with flat rows

Promises
--------
* A query ends even if a node dies meanwhile: its rows are missing from the answer.
* Memory is bounded (G8); rows hold IDs and numbers, no arguments and no values.

Modules
-------
timeline   the rows that a node keeps about the ranges that ran on it
queries    the kinds of query and their columns; how a node gathers the rows
"""
