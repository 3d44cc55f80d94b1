"""A node drops the objects of a job that it fetches when the job ends."""

from __future__ import annotations

from raytwin.runtime.control.core.ids import job_of, object_id
from raytwin.runtime.control.messages import (
    SYSTEM_ERROR,
    Fetch,
    Fetched,
    Free,
    JobEnded,
    LocateObjects,
    Location,
    ObjectLocations,
    ObjectPayload,
    ObjectsReady,
    PullObject,
    TaskUpdates,
    WantObjects,
)
from raytwin.runtime.control.messages.errors import Loss, LossCause, unpack
from tests.control.alone import array, result
from tests.control.one_node import DRIVER, W1, Node

LARGE, SMALL = (object_id(array(number), 0, 0) for number in (1, 2))
ENDED = JobEnded(job_of(LARGE), "its driver has ended")


def fetching() -> Node:
    """Return a node that fetches a large and a small object for a worker and for the driver."""
    node = Node()
    for client in (W1, DRIVER):
        node.turn(client, WantObjects([LARGE, SMALL]))
    node.turn("gcs", ObjectLocations([Location(LARGE, (2,), 500), Location(SMALL, (2,), 0)]))
    assert node.ctx.take(Fetch, "store:0") == [Fetch(LARGE, 500, 2)]
    assert node.ctx.take(PullObject, "node:2") == [PullObject(SMALL)]
    node.ctx.sent.clear()
    return node


def is_empty(node: Node) -> bool:
    objects = node.scheduler.objects
    pulls = (objects.pulls._wanted, objects.pulls.wanted_of, objects.pulls._fetching)
    return not any((*pulls, objects.of_job(ENDED.job), objects.memory.stored_bytes))


def test_an_object_that_arrives_after_the_end_of_its_job_is_freed() -> None:
    node = fetching()
    node.turn("gcs", ENDED)
    node.turn("store:0", Fetched(LARGE, 7, 500, 0.1, "", 2))
    node.turn("node:2", ObjectPayload(SMALL, result(2, payload=b"small", node=2)))
    assert node.ctx.take(Free, "store:0") == [Free(LARGE, 7)]
    assert is_empty(node)
    assert not node.ctx.take(TaskUpdates, "gcs"), "the GCS hears of no copy"


def test_a_source_that_fails_after_the_end_of_the_job_is_not_replaced() -> None:
    node = fetching()
    node.turn("gcs", ENDED)
    node.turn("store:0", Fetched(LARGE, -1, 500, 0.1, "connection reset", 2))
    node.turn("node:2", ObjectPayload(SMALL, None))
    node.ctx.pass_time(10.0)
    node.turn("gcs")
    assert not node.ctx.take(LocateObjects) and is_empty(node)


def test_who_fetches_an_object_of_an_ended_job_for_another_job_gets_an_error() -> None:
    node = fetching()
    node.turn("gcs", ENDED)
    told = [value for ready in node.ctx.take(ObjectsReady, W1) for value in ready.values]
    assert {value.object: value.status for value in told} == {
        LARGE: SYSTEM_ERROR,
        SMALL: SYSTEM_ERROR,
    }
    assert unpack(told[0].payload) == Loss(LossCause.JOB_ENDED, object=told[0].object)
