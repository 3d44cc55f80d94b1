"""Proximal policy optimization (Schulman et al. 2017): learns to balance a pole, with actors that
need different resources.

Simulators, an actor per CPU, play; the trainer, one actor that has the GPU if there is one, learns.
Whoever comes back with a rollout is sent out again at once with the newest weights, until an
iteration has its steps: nobody waits for the slowest. The driver sees how many steps a rollout has;
the rollout itself goes to the trainer.

The pole is gymnasium's CartPole-v1: ``pip install gymnasium``.
"""

# mypy: disable-error-code="attr-defined"
# A class that was decorated has `remote`; that is known only when it runs.
from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

INPUTS, HIDDEN, ACTIONS = 4, 32, 2
SIMULATORS, ITERATIONS = 2, 12
STEPS, FRAGMENT = 2_000, 250
"""Of an iteration, and of a rollout."""
SGD_STEPS, BATCH, RATE = 40, 512, 0.01
CLIP, DISCOUNT, SMOOTHING, CURIOSITY = 0.2, 0.99, 0.95, 0.01


class Rollout(NamedTuple):
    """Steps of a simulator, arrays with a row for each."""

    observations: Any
    actions: Any
    log_probabilities: Any
    advantages: Any
    returns: Any
    scores: Sequence[float] = ()
    """Of the episodes that ended in it."""


class Network:
    """A layer of tanh, and above it the logits of the actions and the value of the state."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        below = rng.normal(size=(INPUTS + 1, HIDDEN)) / np.sqrt(INPUTS)
        above = rng.normal(size=(HIDDEN + 1, ACTIONS + 1)) * 0.01
        self.weights = np.concatenate([below.ravel(), above.ravel()])

    @staticmethod
    def forward(weights: Any, observations: Any) -> tuple[Any, Any, Any]:
        """Return log probabilities (n, actions), values (n,) and the hidden layer (n, hidden)."""
        below, above = split(weights)
        hidden = np.tanh(observations @ below[:-1] + below[-1])
        out = hidden @ above[:-1] + above[-1]
        logits = out[:, :-1] - out[:, :-1].max(axis=1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)), out[:, -1], hidden

    @staticmethod
    def gradient(weights: Any, batch: Rollout) -> Any:
        """Return the gradient of the clipped objective's loss, by hand."""
        logs, values, hidden = Network.forward(weights, batch.observations)
        count = len(values)
        chosen = np.eye(ACTIONS)[batch.actions]
        ratio = np.exp((logs * chosen).sum(axis=1) - batch.log_probabilities)
        gain = (batch.advantages - batch.advantages.mean()) / (batch.advantages.std() + 1e-8)
        inside = np.where(gain > 0, ratio < 1 + CLIP, ratio > 1 - CLIP)
        entropy = -(np.exp(logs) * logs).sum(axis=1, keepdims=True)
        slope = np.empty((count, ACTIONS + 1))
        slope[:, :-1] = -(inside * gain * ratio)[:, None] * (chosen - np.exp(logs))
        slope[:, :-1] += CURIOSITY * np.exp(logs) * (logs + entropy)
        slope[:, -1] = 0.01 * (values - batch.returns)
        slope /= count
        _, above = split(weights)
        under = (slope @ above[:-1].T) * (1 - hidden**2)
        return np.concatenate(
            [
                (batch.observations.T @ under).ravel(), under.sum(axis=0),
                (hidden.T @ slope).ravel(), slope.sum(axis=0),
            ]
        )  # fmt: skip


def split(weights: Any) -> tuple[Any, Any]:
    below, above = np.split(weights, [(INPUTS + 1) * HIDDEN])
    return below.reshape(INPUTS + 1, HIDDEN), above.reshape(HIDDEN + 1, ACTIONS + 1)


class CartPole:
    """Plays, and goes on where its last rollout ended."""

    def __init__(self, seed: int) -> None:
        import gymnasium  # here, so that only who plays needs it

        self.env = gymnasium.make("CartPole-v1", disable_env_checker=True)
        self.rng = np.random.default_rng(seed)
        self.observation, _ = self.env.reset(seed=seed)
        self.score = 0.0

    def play(self, weights: Any) -> tuple[int, Rollout]:
        """Return how many steps were played, and what was seen."""
        steps, scores = [], []
        for _ in range(FRAGMENT):
            seen = self.observation
            logs, values, _ = Network.forward(weights, seen[None])
            action = int(self.rng.random() >= np.exp(logs[0, 0]))
            self.observation, reward, ended, cut, _ = self.env.step(action)
            self.score += float(reward)
            # An episode that was cut would have gone on: its last state has a value.
            ahead = 0.0
            if cut and not ended:
                ahead = float(Network.forward(weights, self.observation[None])[1][0])
            steps.append((seen, action, logs[0, action], reward, values[0], ended or cut, ahead))
            if ended or cut:
                scores.append(self.score)
                self.score = 0.0
                self.observation, _ = self.env.reset()
        columns = map(np.array, zip(*steps, strict=True))
        seen, actions, chosen, rewards, values, over, ends = columns
        advantages = np.zeros(FRAGMENT)
        following = float(Network.forward(weights, self.observation[None])[1][0])
        later = 0.0
        for i in reversed(range(FRAGMENT)):
            if over[i]:
                following, later = ends[i], 0.0
            later = rewards[i] + DISCOUNT * following - values[i] + DISCOUNT * SMOOTHING * later
            advantages[i], following = later, values[i]
        return FRAGMENT, Rollout(seen, actions, chosen, advantages, advantages + values, scores)


class Learner:
    """Takes rollouts, and steps of gradient descent with them (Adam, Kingma and Ba 2014)."""

    def __init__(self, seed: int) -> None:
        self.weights = Network(seed).weights
        self.rng = np.random.default_rng(seed)
        self.rollouts: list[Rollout] = []
        self.scores: list[float] = []
        self.count = 0
        self.mean = self.square = np.zeros_like(self.weights)

    def add(self, rollout: Rollout) -> None:
        self.rollouts.append(rollout)

    def train(self, batch: int = BATCH, average: Callable[[Any], Any] = lambda own: own) -> Any:
        """Return the weights after learning from all rollouts, which are forgotten.

        `average` makes of the gradient of `batch` steps that which is applied."""
        *columns, scores = zip(*self.rollouts, strict=True)
        seen: list[Any] = [np.concatenate(column) for column in columns]
        self.scores = [score for some in scores for score in some]
        self.rollouts = []
        for _ in range(SGD_STEPS):
            some = self.rng.integers(len(seen[0]), size=batch)
            part = Rollout(*(column[some] for column in seen))
            gradient = average(Network.gradient(self.weights, part))
            self.count += 1
            self.mean = 0.9 * self.mean + 0.1 * gradient
            self.square = 0.999 * self.square + 0.001 * gradient**2
            mean, square = self.mean / (1 - 0.9**self.count), self.square / (1 - 0.999**self.count)
            self.weights = self.weights - RATE * mean / (np.sqrt(square) + 1e-8)
        return self.weights


class Problem(Protocol):
    """Makes what simulators play, with ``play(weights)``, and what trains, as `Learner` does."""

    def simulator(self, number: int) -> Any: ...
    def learner(self) -> Any: ...


class Balance:
    """To balance CartPole-v1."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def simulator(self, number: int) -> CartPole:
        return CartPole(1_000 * self.seed + number)

    def learner(self) -> Learner:
        return Learner(self.seed)


class Simulator:
    """An actor that plays."""

    def __init__(self, problem: Problem, number: int) -> None:
        self.game = problem.simulator(number)

    def play(self, weights: Any) -> Any:
        """Return two values: how many steps, and the rollout."""
        return self.game.play(weights)


class Trainer:
    """The actor that learns."""

    def __init__(self, problem: Problem) -> None:
        self.learner = problem.learner()

    def weights(self) -> Any:
        return self.learner.weights

    def add(self, rollout: Any) -> None:
        self.learner.add(rollout)

    def train(self) -> Any:
        return self.learner.train()

    def scores(self) -> list[float]:
        return list(self.learner.scores)


class Iteration(NamedTuple):
    """How an iteration went."""

    score: float
    """Of the episodes that ended in it, on average."""
    steps: int
    seconds: float


def learn(
    ray: Any, problem: Problem, simulators: int, gpus: float, steps: int = STEPS
) -> Iterator[Iteration]:
    """Yield iterations of `steps` steps at least, for as long as they are asked for."""
    now: Callable[[], float] = getattr(ray, "now", time.perf_counter)  # raytwin's may be virtual
    player = ray.remote(num_cpus=1)(Simulator)
    players = [player.remote(problem, number) for number in range(simulators)]
    trainer = ray.remote(num_cpus=0, num_gpus=gpus)(Trainer).remote(problem)
    weights = trainer.weights.remote()
    ray.wait([weights])
    idle, playing = players, {}
    while True:
        began_s, gathered, added = now(), 0, []
        while gathered < steps:
            for each in idle:
                count, rollout = each.play.options(num_returns=2).remote(weights)
                playing[count] = each, rollout
            idle = []
            # Whoever still plays at the end of an iteration counts for the next one.
            ready, _ = ray.wait(list(playing))
            for count in ready:
                each, rollout = playing.pop(count)
                gathered += ray.get(count)
                added.append(trainer.add.remote(rollout))
                idle.append(each)
        weights = trainer.train.remote()
        *_, scores = ray.get([*added, trainer.scores.remote()])
        yield Iteration(sum(scores) / max(1, len(scores)), gathered, now() - began_s)


def main(ray: Any) -> list[float]:
    """Return the mean score of each iteration; 500 is the most."""
    gpus = min(1.0, ray.cluster_resources().get("GPU", 0.0))
    iterations = learn(ray, Balance(), SIMULATORS, gpus)
    scores = [next(iterations).score for _ in range(ITERATIONS)]
    print(f"mean score {scores[0]:,.0f} at first, {scores[-1]:,.0f} after {ITERATIONS} iterations")
    return scores


if __name__ == "__main__":
    import ray

    ray.init()
    main(ray)
