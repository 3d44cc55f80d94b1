"""Evolution strategies (Salimans et al. 2017): a pendulum learns to stand, without a gradient.

An iteration tries the policy with noise added to its weights and with the same noise taken away, a
task for each such pair, and moves the weights towards what scored better. A pair's noise comes from
its seed, so only two scores travel back; adding up all the noise is the work that is left. One
driver that does all of it is a bottleneck, so aggregators, a tree of actors, share it: each leaf
submits tasks of its own and adds up what they find, and each actor above adds up what its children
did.

The pendulum is gymnasium's: ``pip install gymnasium``.
"""

# mypy: disable-error-code="attr-defined"
# A class that was decorated has `remote`; that is known only when it runs.
from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

INPUTS, HIDDEN, TORQUE_MAX = 3, 8, 2.0
ITERATIONS, PAIRS, LEAVES, FAN_OUT = 30, 20, 4, 2
SIGMA, RATE = 0.2, 0.3
BATCH = 100
"""Results that are added up at a time."""


class Pair(NamedTuple):
    """A task's result: the scores with noise added and subtracted, and the steps it simulated."""

    seed: int
    plus: float
    minus: float
    steps: int


class Sum(NamedTuple):
    """An aggregator's sum of the results of a part of the population."""

    direction: Any
    """The noise of all pairs, each weighted by how much better it scored added than taken away."""
    squares: float
    """The sum of the squared differences; the driver scales its step by its root."""
    score: float
    pairs: int
    steps: int


class Problem(Protocol):
    """The environment that a policy learns, and how aggregators add up the results of tasks."""

    def evaluate(self, weights: Any, seed: int) -> Pair:
        """Try the weights with noise, and with as much taken away; runs as a task."""

    def add_up(self, pairs: Sequence[Pair]) -> Sum:
        """Return the sum of what tasks have found."""

    def add_sums(self, sums: Sequence[Sum]) -> Sum:
        """Return the sum of what aggregators have added up."""


class Pendulum:
    """gymnasium's Pendulum-v1: swing it up and hold it there. A score is at most 0, mostly -1,300
    at first and above -300 for one that stands."""

    weights = (INPUTS + 2) * HIDDEN + 1

    def noise(self, seed: int) -> Any:
        return np.random.default_rng(seed).normal(size=self.weights)

    def evaluate(self, weights: Any, seed: int) -> Pair:
        noise = SIGMA * self.noise(seed)
        # From the same start, so that the difference is the noise's.
        plus, steps = self.play(weights + noise, seed)
        minus, more = self.play(weights - noise, seed)
        return Pair(seed, plus, minus, steps + more)

    def play(self, weights: Any, seed: int) -> tuple[float, int]:
        """Play an episode; return its score and its steps."""
        import gymnasium  # here, so that only who plays needs it

        first, rest = np.split(weights, [(INPUTS + 1) * HIDDEN])
        first = first.reshape(INPUTS + 1, HIDDEN)
        env = gymnasium.make("Pendulum-v1", disable_env_checker=True)
        observation, _ = env.reset(seed=seed)
        score, steps, over = 0.0, 0, False
        while not over:
            hidden = np.tanh(observation / (1.0, 1.0, 8.0) @ first[:-1] + first[-1])
            torque = TORQUE_MAX * np.tanh(hidden @ rest[:-1] + rest[-1:])
            observation, reward, terminated, truncated, _ = env.step(torque)
            score, steps, over = score + float(reward), steps + 1, terminated or truncated
        return score, steps

    def add_up(self, pairs: Sequence[Pair]) -> Sum:
        return Sum(
            sum((pair.plus - pair.minus) * self.noise(pair.seed) for pair in pairs),
            sum((pair.plus - pair.minus) ** 2 for pair in pairs),
            sum((pair.plus + pair.minus) / 2 for pair in pairs),
            len(pairs),
            sum(pair.steps for pair in pairs),
        )

    def add_sums(self, sums: Sequence[Sum]) -> Sum:
        return Sum(*(sum(column) for column in zip(*sums, strict=True)))


class Aggregator:
    """An actor of the tree: a leaf has tasks run, one above has its children do that."""

    def __init__(self, ray: Any, problem: Problem, children: list[Any]) -> None:
        self.ray = ray
        self.problem = problem
        self.children = children

    def run(self, weights: list[Any], seeds: range) -> Sum:
        """Return the sum over the pairs of some seeds; `weights` is a reference in a list, so that
        it is handed on, and only the tasks fetch it."""
        if not self.children:
            return run_tasks(self.ray, self.problem, weights[0], seeds)
        return run_tree(self.ray, self.problem, self.children, weights[0], seeds)


def evaluate(problem: Problem, weights: Any, seed: int) -> Pair:
    """The task."""
    return problem.evaluate(weights, seed)


def run_tasks(ray: Any, problem: Problem, weights: Any, seeds: range) -> Sum:
    """Have each pair evaluated by a task and add up here, while others still run."""
    task = ray.remote(evaluate)
    found = [task.remote(problem, weights, seed) for seed in seeds]
    batches = [found[start : start + BATCH] for start in range(0, len(found), BATCH)]
    return problem.add_sums([problem.add_up(ray.get(batch)) for batch in batches])


def run_tree(ray: Any, problem: Problem, children: list[Any], weights: Any, seeds: range) -> Sum:
    """Have each child add up its share of the pairs, and add up the sums here."""
    size = -(-len(seeds) // len(children))
    shares = [seeds[start : start + size] for start in range(0, len(seeds), size)]
    return problem.add_sums(
        # With fewer pairs than children, some have none.
        ray.get(
            [child.run.remote([weights], s) for child, s in zip(children, shares, strict=False)]
        )
    )


def plant(ray: Any, problem: Problem, leaves: int, fan_out: int) -> list[Any]:
    """Start a tree of aggregators with leaves on all nodes; return the children of its root, which
    is the driver."""
    actor = ray.remote(num_cpus=0, scheduling_strategy="SPREAD")(Aggregator)
    level = [actor.remote(ray, problem, []) for _ in range(leaves)]
    while len(level) > fan_out:
        groups = [level[start : start + fan_out] for start in range(0, len(level), fan_out)]
        level = [actor.remote(ray, problem, group) for group in groups]
    return level


class Adam:
    """Turns directions into steps of a steady size (Kingma and Ba 2014)."""

    def __init__(self, weights: Any, rate: float) -> None:
        self.weights, self.rate = weights, rate
        self.count, self.mean, self.square = 0, np.zeros_like(weights), np.zeros_like(weights)

    def ascend(self, direction: Any) -> None:
        self.count += 1
        self.mean = 0.9 * self.mean + 0.1 * direction
        self.square = 0.99 * self.square + 0.01 * direction**2
        mean, square = self.mean / (1 - 0.9**self.count), self.square / (1 - 0.99**self.count)
        self.weights = self.weights + self.rate * mean / (np.sqrt(square) + 1e-8)


class Iteration(NamedTuple):
    """How an iteration went."""

    score: float
    """Of the population's episodes, on average."""
    steps: int
    seconds: float


def learn(ray: Any, pairs: int, tree: tuple[int, int] | None, seed: int = 0) -> Iterator[Iteration]:
    """Yield iterations for as long as they are asked for; `tree` is its leaves and its fan-out,
    None has the driver add up alone. A seed's scores depend on neither."""
    problem = Pendulum()
    learner = Adam(0.3 * problem.noise(seed), RATE)
    children = plant(ray, problem, *tree) if tree else []
    first = 1 + 1_000_000 * seed
    while True:
        seeds = range(first, first := first + pairs)
        total, seconds = run_population(ray, problem, children, learner.weights, seeds)
        learner.ascend(total.direction / (np.sqrt(total.squares * pairs) + 1e-8))
        yield Iteration(total.score / pairs, total.steps, seconds)


def run_population(
    ray: Any, problem: Problem, children: list[Any], weights: Any, seeds: range
) -> tuple[Sum, float]:
    """Run an iteration's tasks; return what they have found, and the seconds."""
    now: Callable[[], float] = getattr(ray, "now", time.perf_counter)  # raytwin's may be virtual
    began_s = now()
    shared = ray.put(weights)
    if children:
        total = run_tree(ray, problem, children, shared, seeds)
    else:
        total = run_tasks(ray, problem, shared, seeds)
    return total, now() - began_s


def main(ray: Any) -> list[float]:
    """Return the mean score of each iteration."""
    iterations = learn(ray, PAIRS, (LEAVES, FAN_OUT))
    scores = [next(iterations).score for _ in range(ITERATIONS)]
    print(f"mean score {scores[0]:,.0f} at first, {scores[-1]:,.0f} after {ITERATIONS} iterations")
    return scores


if __name__ == "__main__":
    import ray

    main(ray)
