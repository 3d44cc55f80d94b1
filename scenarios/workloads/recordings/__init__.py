"""Programs as graphs: recordings that are played, and what they are made of besides a run.

A recording has the tasks, calls, sizes, durations and references of a program
(`runtime.session.recording`). `recorded_program` plays one on any backend. Where the program never
ran under raytwin an importer makes the recording: of WfCommons' WfFormat, of Alibaba's batch traces
of 2018, of Ray's timeline (`imported_*`), or of what `raytwin record` has seen of a run on Ray
(`ray_graph`). What importers share is in `imported_graph`: each reads its format, and builds a
`Graph` of it.

State: none but the graph that is being built. In: a file, or a run's events. Out: a recording, or
`TraceError`, which says in one line what is wrong with the file.
"""

from __future__ import annotations
