"""How often calls are run again is counted, whichever incarnations have ended since."""

from __future__ import annotations

from typing import Any

import raytwin as ray
from raytwin.runtime.control.actors.call_queue import CALLS_AGAIN
from raytwin.runtime.control.actors.reconstruction import REPLAYED
from tests.actors.conftest import Start
from tests.actors.programs import Account

HEARTBEATS_S = 0.5


def _row(session: Any) -> Any:
    (row,) = [row for row in session.query("actors") if row[0].endswith("Account")]
    return row


def test_replays_of_incarnations_that_have_ended_count(start: Start) -> None:
    """Each rebuilding repeats all calls before it: the living one knows of its own alone."""
    nodes = [{"CPU": 1}, *({"CPU": 1, "slot": 1} for _ in range(3))]
    session = start(nodes=nodes, cpus_per_node=None)
    account = Account.options(max_restarts=-1, max_task_retries=-1, resources={"slot": 1}).remote()
    for calls in (4, 6):
        ray.get([account.add.remote(n) for n in range(calls)])
        under_way = account.nap.remote(0.3)
        ray.sleep(0.1)
        session.cluster.kill_node(_row(session)[1])
        assert ray.get(under_way) == "rested"
        ray.sleep(HEARTBEATS_S)
    assert ray.get(account.add.remote(0)) == 11
    assert _row(session)[5] == 4 + 1 + 6, "the last incarnation's"
    counts = session.query("event_counts")
    assert counts[REPLAYED] == 4 + (4 + 1 + 6)
    assert counts[CALLS_AGAIN] == 2
    assert sum(row[4] for row in session.query("events") if row[1] == REPLAYED) == 15
