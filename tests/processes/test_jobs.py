"""Several drivers on one cluster of real processes: what each sees of the others.

The tests' own program starts the cluster and is its first job; the others are programs
that join it, in processes that can be killed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cloudpickle

import raytwin as ray
from tests.processes.conftest import Start
from tests.processes.helpers import LIMIT_S, eventually
from tests.processes.jobs import BIG, Shared, square
from tests.processes.joined import Joined


def test_objects_that_an_actor_hands_to_another_job_can_be_used(
    start: Start, join: Callable[..., Joined]
) -> None:
    session = start(nodes=2, cpus_per_node=2)

    @ray.remote
    class Box:
        def __init__(self, refs: list[ray.ObjectRef]) -> None:
            self.refs = refs

        def all(self) -> list[ray.ObjectRef]:
            return self.refs

    refs = [ray.put(1), ray.put(bytes(BIG)), square.remote(4)]
    box = Box.options(name="box", namespace="all").remote(refs)
    ray.wait(refs, num_returns=3)
    other = join(
        session,
        """
        @ray.remote
        def read(refs):
            return ray.get(refs[0])
        refs = ray.get(ray.get_actor("box", namespace="all").all.remote())
        say(*[len(bytes(ray.get(ref, timeout=20))) for ref in refs])
        say(*[len(bytes(ray.get(read.remote([ref]), timeout=20))) for ref in refs])
        """,
    )
    assert [other.line() for _ in range(2)] == [f"1 {BIG} 16"] * 2
    other.end()
    assert [ray.get(refs[0]), len(ray.get(refs[1])), ray.get(refs[2])] == [1, BIG, 16]
    del box


def test_named_actors_are_their_namespace_s(
    start: Start, join: Callable[..., Joined], tmp_path: Path
) -> None:
    session = start(cpus_per_node=4, namespace="mine")
    unnamed = Shared.remote()
    named = Shared.options(name="counter").remote()
    elsewhere = Shared.options(name="counter", namespace="elsewhere").remote()
    assert ray.get([unnamed.call.remote(), named.call.remote(), elsewhere.call.remote()]) == [1] * 3
    handle = tmp_path / "handle"
    handle.write_bytes(cloudpickle.dumps(unnamed))
    script = """
        import cloudpickle
        copied = cloudpickle.load(open(os.environ["HANDLE"], "rb"))
        say(ray.get(copied.call.remote(), timeout=20))
        try:
            say(ray.get(ray.get_actor("counter").call.remote()))
        except ValueError as error:
            say(error)
        counter = ray.get_actor("counter", namespace="elsewhere")
        @ray.remote
        def call(actor):
            return ray.get(actor.call.remote())
        say(ray.get(call.remote(counter)), ray.get_runtime_context().namespace)
        """
    other = join(session, script, HANDLE=str(handle), NAMESPACE="mine")
    assert other.line() == "2", "whoever has a handle may call"
    assert other.line() == "2"
    assert other.line() == "2 mine"
    other.end()
    other = join(session, script, HANDLE=str(handle))
    assert other.line() == "3"
    assert "counter" in other.line()
    assert other.line() == "3 job-3"
    other.end()
    assert ray.get([unnamed.call.remote(), named.call.remote()]) == [4, 3]


def test_a_placement_group_is_its_job_s(
    start: Start, join: Callable[..., Joined], tmp_path: Path
) -> None:
    session = start(nodes=2, cpus_per_node=2)
    group = ray.util.placement_group([{"CPU": 1}, {"CPU": 1}], name="group")
    assert group.wait(LIMIT_S)
    inside = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, 0)
    shared = Shared.options(scheduling_strategy=inside, num_cpus=1).remote()
    assert ray.get(shared.call.remote()) == 1
    handle = tmp_path / "handle"
    handle.write_bytes(cloudpickle.dumps(group))
    other = join(
        session,
        """
        import cloudpickle
        group = cloudpickle.load(open(os.environ["HANDLE"], "rb"))
        say(ray.util.placement_group_table(), ray.util.placement_group_table(group))
        say(ray.util.placement_group([{"CPU": 1}], name="group").wait(20))
        """,
        HANDLE=str(handle),
    )
    assert other.line() == "{} {}"
    assert other.line() == "True"
    other.end()
    assert ray.get(shared.call.remote()) == 2
    ray.util.remove_placement_group(group)
    eventually(lambda: not [row for row in session.query("groups") if row[5] != "REMOVED"])


def test_equal_functions_and_equal_names_of_two_jobs_are_not_mixed_up(
    start: Start, join: Callable[..., Joined]
) -> None:
    session = start(cpus_per_node=2)
    script = """
        import builtins
        builtins.marker = getattr(builtins, "marker", []) + [os.environ["WHO"]]
        @ray.remote
        def who(name):
            import builtins
            builtins.marker = getattr(builtins, "marker", []) + [name]
            return sorted(set(builtins.marker))
        mine = Counter.options(name="same").remote()
        say(ray.get([who.remote(os.environ["WHO"]) for _ in range(20)])[-1])
        say(ray.get(ray.get_actor("same").add.remote(int(os.environ["WHO"]))))
        sys.stdin.readline()
        """
    others = [join(session, script, WHO=str(number)) for number in (1, 2)]
    for number, other in enumerate(others, 1):
        # Nothing that the other job's tasks left in their processes is seen.
        assert other.line() == str([str(number)])
        assert other.line() == str(number)
