"""Policies: the tasks that each keeps, the nodes that each chooses, and their names."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from raytwin.runtime.control.core.config import Config
from raytwin.runtime.control.scheduling.policies import (
    POLICIES,
    BottomUp,
    LocalView,
    NodeView,
    Policy,
    make_policy,
)


def local(**known: object) -> LocalView:
    view = {"alone": False, "feasible": True, "queue": 0, "slots": 2, "mean_task_s": 0.0}
    return LocalView(**{**view, **known})  # type: ignore[arg-type]


def node(number: int, queue: int = 0, remote: int = 0, mean_s: float = 0.01) -> NodeView:
    return NodeView(number, queue, 1, mean_s, remote, 1e8)


class Last(Policy):
    """A policy of a user's own."""

    name = "last"

    def choose(self, nodes, rng):  # type: ignore[no-untyped-def]
        return nodes[-1]


NOT_A_POLICY = dict


@pytest.mark.parametrize("name", POLICIES)
def test_no_policy_keeps_an_infeasible_task(name: str) -> None:
    policy = make_policy(Config(policy=name))
    assert policy.name == name
    assert policy.keep(local(feasible=False), 5) == 0


@pytest.mark.parametrize("name", ["centralized", "random", "power-of-two", "batch-sampling"])
def test_some_policies_keep_nothing(name: str) -> None:
    assert make_policy(Config(policy=name)).keep(local(alone=True), 5) == 0


@pytest.mark.parametrize("name", ["bottom-up", "locality-blind"])
def test_bottom_up_keeps_what_its_queue_has_room_for(name: str) -> None:
    config = Config(policy=name, spill_wait_s=0.1, spill_tasks_per_slot=4)
    policy = make_policy(config)
    assert policy.keep(local(alone=True, queue=99), 50) == 50
    assert policy.keep(local(), 50) == 8
    assert policy.keep(local(queue=6), 50) == 2
    assert policy.keep(local(queue=99), 50) == 0
    # 0.1 s of 1 ms tasks on two slots; long tasks keep the bound in tasks.
    assert policy.keep(local(mean_task_s=0.001), 500) == 200
    assert policy.keep(local(mean_task_s=0.001, queue=150), 500) == 50
    assert policy.keep(local(mean_task_s=10.0), 500) == 8


@pytest.mark.parametrize("name", ["bottom-up", "locality-blind"])
def test_bottom_up_keeps_nothing_that_would_wait_for_an_actor(name: str) -> None:
    policy = make_policy(Config(policy=name, spill_wait_s=0.1))
    assert policy.keep(local(slots=0, mean_task_s=0.001), 5) == 0
    assert policy.keep(local(slots=0, alone=True), 5) == 5


def test_work_stealing_keeps_whatever_its_node_can_run() -> None:
    policy = make_policy(Config(policy="work-stealing"))
    assert policy.steals and not policy.uses_locations
    assert policy.keep(local(queue=10_000, mean_task_s=9.0, busy_s=9.0), 5_000) == 5_000
    assert policy.keep(local(slots=0), 5) == 0, "it would wait for an actor to end"
    assert policy.keep(local(slots=0, alone=True), 5) == 5
    thieves = [name for name in POLICIES if make_policy(Config(policy=name)).steals]
    assert thieves == ["work-stealing"]


def test_bottom_up_weighs_the_queue_against_the_inputs() -> None:
    policy, rng = BottomUp(Config()), random.Random(0)
    near, far = node(1, queue=5), node(2, remote=4_000_000)
    assert policy.choose([near, far], rng) is far  # 50 ms of queue, 40 ms of transfer
    far = node(2, remote=6_000_000)
    assert policy.choose([near, far], rng) is near


def test_locality_blind_does_not_see_the_inputs() -> None:
    policy = make_policy(Config(policy="locality-blind"))
    chosen = Counter(
        policy.choose([node(1), node(2, remote=10**9), node(3, queue=1)], random.Random(s)).node
        for s in range(200)
    )
    assert set(chosen) == {1, 2}
    assert min(chosen.values()) > 50
    assert not policy.uses_locations


def test_random_and_power_of_two_use_every_node() -> None:
    for name in ("random", "power-of-two", "work-stealing"):
        policy, rng = make_policy(Config(policy=name)), random.Random(1)
        nodes = [node(n, queue=100 if n == 0 else 0) for n in range(4)]
        chosen = Counter(policy.choose(nodes, rng).node for _ in range(1000))
        assert set(chosen) == {0, 1, 2, 3}
        if name == "power-of-two":
            assert chosen[0] < 130  # only when it is drawn twice


@pytest.mark.parametrize("name", sorted({*POLICIES} - {"batch-sampling"}))
def test_a_range_is_spread_piece_by_piece(name: str) -> None:
    policy = make_policy(Config(policy=name))
    rng = random.Random(3)
    views = [node(n, queue=rng.randrange(9), remote=rng.randrange(10**6)) for n in range(6)]
    twins = [node(v.node, v.queue, v.remote_bytes) for v in views]
    pieces = [rng.randint(1, 5) for _ in range(40)]
    spread = policy.spread(views, pieces, random.Random(7))
    one_by_one, rng = [], random.Random(7)
    for count in pieces:
        chosen = policy.choose(twins, rng)
        chosen.queue += count
        one_by_one.append(chosen.node)
    assert [view.node for view in spread] == one_by_one
    assert [view.queue for view in views] == [twin.queue for twin in twins]


def test_batch_sampling_shares_the_probes_of_a_batch(seed: int) -> None:
    print(f"seed {seed}")
    policy, rng = make_policy(Config(policy="batch-sampling")), random.Random(seed)
    # Of twelve tasks on a hundred nodes 24 are probed, and the least loaded of these get them.
    for _ in range(50):
        views = [node(n, queue=rng.randrange(20)) for n in range(100)]
        before = {view.node: view.queue for view in views}
        state = random.Random(rng.random())
        drawn = random.Random()
        drawn.setstate(state.getstate())
        probed = sorted(before[n] for n in drawn.sample(range(100), 24))
        chosen = policy.spread(views, [1] * 12, state)
        # One that is far less loaded than the others gets several.
        waits = [before[view.node] for view in chosen]
        assert max(waits) <= probed[11] and min(waits) == probed[0]
        assert sum(view.queue for view in views) == sum(before.values()) + 12
    # A single task goes to the less loaded of two; no node is probed twice.
    views = [node(0, queue=9), node(1)]
    assert all(policy.choose(views, rng).node == 1 for _ in range(20))
    assert [view.node for view in policy.spread([node(7)], [3, 2], rng)] == [7, 7]


def test_a_user_s_policy_by_import_path() -> None:
    policy = make_policy(Config(policy="tests.control.test_policies:Last"))
    assert policy.choose([node(1), node(2)], random.Random(0)).node == 2


@pytest.mark.parametrize(
    "name",
    ["nonsense", "", "no.such.module:Last", "tests.control.test_policies:Missing",
     "tests.control.test_policies:NOT_A_POLICY"],
)  # fmt: skip
def test_a_bad_name_is_explained(name: str) -> None:
    with pytest.raises(ValueError, match="policy"):
        make_policy(Config(policy=name))
