"""Synchronous data-parallel SGD: replicas of a network learn from data of their own, in step.

A replica is an actor. In each step it draws a batch, and goes through the layers of the network
forwards, then backwards; each is a call, so the gradient of a layer is on its way while the replica
works on the layer below. What happens to it is the *strategy*:

- `PARAMETER_SERVER`: the layers are spread over shards, which are actors, too. A shard averages the
  gradients of all replicas and returns the new weights.
- `ALLREDUCE`: beside each replica an actor has all weights, a `Reducer`. The reducers add up a
  layer's gradients in a ring: each begins with one part, and adds to what it gets; then the sums go
  around.

The next step of a replica goes through a layer as soon as the new weights of it have arrived. Who
waits for whom is only in the references that calls have as arguments. Both strategies compute the
same numbers, up to the order of sums.

    python sgd.py [parameter-server|allreduce]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

PARAMETER_SERVER, ALLREDUCE = "parameter-server", "allreduce"
STRATEGIES = (PARAMETER_SERVER, ALLREDUCE)
CLASSES = 10
RATE = 0.2
NOISE = 1.0
"""The standard deviation of each number of an image."""
SIGNAL = 3.0
"""How far the mean image of a class is from zero, whatever the width."""
STEPS_IN_FLIGHT = 2
"""The driver submits a step before the one before it has ended, and no more."""


class Shape:
    """The shape of a network: equal layers, each an array of ``width + 1`` rows (the last one is
    the bias) and ``width`` columns, and images of ``width`` numbers, ``batch`` at a time."""

    def __init__(self, layers: int = 4, width: int = 64, batch: int = 32) -> None:
        self.layers, self.width, self.batch = layers, width, batch

    def weights(self, layer: int) -> Any:
        """Return the weights of a layer that every run begins with."""
        random = np.random.default_rng(layer)
        scale = 1 / np.sqrt(self.width)
        return random.normal(0, scale, (self.width + 1, self.width)).astype(np.float32)


class Arithmetic:
    """How gradients and weights travel, and how long it takes to make them: here as numpy arrays,
    in the time of numpy. A simulation has others of its own."""

    def pack(self, array: Any) -> Any:
        """Return what travels for an array."""
        return array

    def unpack(self, value: Any) -> Any:
        """Return the array that has travelled."""
        return value

    def passed(self, backwards: bool) -> None:
        """A replica has passed a layer."""

    def added(self, array: Any) -> None:
        """Somebody has added an array to another."""

    def stepped(self, array: Any) -> None:
        """Somebody has changed weights by the gradients in an array."""


def stepped(weights: Any, total: Any, replicas: int) -> Any:
    """Return weights after a step along the mean of so many replicas' gradients."""
    return weights - RATE / replicas * total


class Network:
    """One replica's network: residual layers, softmax over the first `CLASSES` outputs."""

    def __init__(self, shape: Shape, replica: int) -> None:
        self._shape = shape
        spread = SIGNAL / np.sqrt(shape.width)
        means = np.random.default_rng(0).normal(0, spread, (CLASSES, shape.width))
        self._means = means.astype(np.float32)
        self._random = np.random.default_rng([1, replica])
        self._inputs: list[Any] = []
        """Of each layer, with a last column of ones for the bias."""
        self._slopes: list[Any] = []
        self._weights: list[Any] = []
        self._flow: Any = None
        """Activations, which a layer hands on forwards; their gradients, which it hands back."""
        self.loss = 0.0
        """The mean over the last batch, which has gone forwards."""

    def forward(self, layer: int, weights: Any) -> None:
        """Pass a layer; the first one begins a new batch, the last one has the loss."""
        shape = self._shape
        if layer == 0:
            self._labels = self._random.integers(CLASSES, size=shape.batch)
            noise = self._random.normal(0, NOISE, (shape.batch, shape.width))
            self._flow = self._means[self._labels] + noise.astype(np.float32)
            self._inputs, self._slopes, self._weights = [], [], []
        ones = np.ones((shape.batch, 1), np.float32)
        self._inputs.append(np.hstack([self._flow, ones]))
        self._weights.append(weights)
        out = self._inputs[layer] @ weights
        if layer < shape.layers - 1:
            bent = np.tanh(out)
            self._slopes.append(1 - bent * bent)
            self._flow = self._flow + bent
            return
        scores = out[:, :CLASSES]
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        rows = np.arange(shape.batch)
        self.loss = float(-np.log(chances[rows, self._labels] + 1e-12).mean())
        chances[rows, self._labels] -= 1
        self._flow = np.zeros_like(out)
        self._flow[:, :CLASSES] = chances / shape.batch

    def backward(self, layer: int) -> Any:
        """Return the gradient of a layer's weights."""
        last = layer == self._shape.layers - 1
        at_output = self._flow if last else self._flow * self._slopes[layer]
        gradient = self._inputs[layer].T @ at_output
        through = at_output @ self._weights[layer][:-1].T
        self._flow = through if last else self._flow + through
        return gradient


class Replica:
    """An actor with a network of its own, that is with data of its own."""

    def __init__(self, shape: Shape, arithmetic: Arithmetic, number: int) -> None:
        self._network = Network(shape, number)
        self._arithmetic = arithmetic

    def forward(self, layer: int, weights: Any) -> None:
        """Pass a layer."""
        self._network.forward(layer, self._arithmetic.unpack(weights))
        self._arithmetic.passed(backwards=False)

    def backward(self, layer: int) -> Any:
        """Return the gradient of a layer's weights."""
        gradient = self._network.backward(layer)
        self._arithmetic.passed(backwards=True)
        return self._arithmetic.pack(gradient)

    def loss(self) -> float:
        """Return the loss of the batch that has gone forwards."""
        return self._network.loss


class Shard:
    """An actor of the parameter server, with the weights of some layers."""

    def __init__(self, shape: Shape, arithmetic: Arithmetic) -> None:
        self._shape = shape
        self._arithmetic = arithmetic
        self._weights: dict[int, Any] = {}

    def weights(self, layer: int) -> Any:
        """Return the first weights of a layer."""
        self._weights[layer] = self._shape.weights(layer)
        return self._arithmetic.pack(self._weights[layer])

    def update(self, layer: int, *gradients: Any) -> Any:
        """Take a step along the mean of all replicas' gradients; return the new weights."""
        total = self._arithmetic.unpack(gradients[0])
        for each in gradients[1:]:
            total = total + self._arithmetic.unpack(each)
            self._arithmetic.added(total)
        self._weights[layer] = stepped(self._weights[layer], total, len(gradients))
        self._arithmetic.stepped(total)
        return self._arithmetic.pack(self._weights[layer])


class Reducer:
    """An actor of the ring, with the weights of all layers."""

    def __init__(self, shape: Shape, arithmetic: Arithmetic, members: int) -> None:
        self._arithmetic = arithmetic
        self._members = members
        self._weights = [shape.weights(layer) for layer in range(shape.layers)]
        self._parts: dict[int, list[Any]] = {}
        """By layer: of the gradient, as many parts as there are members."""

    def begin(self, layer: int, gradient: Any, part: int) -> Any:
        """Take the gradient of the replica beside, and return a part of it."""
        rows = self._arithmetic.unpack(gradient)
        self._parts[layer] = list(np.array_split(rows, self._members))
        return self._arithmetic.pack(self._parts[layer][part])

    def add(self, layer: int, part: int, arrived: Any) -> Any:
        """Return the sum of a part and what has arrived."""
        total = self._parts[layer][part] + self._arithmetic.unpack(arrived)
        self._parts[layer][part] = total
        self._arithmetic.added(total)
        return self._arithmetic.pack(total)

    def take(self, layer: int, part: int, arrived: Any) -> Any:
        """Take a sum of all, and return it for the next one."""
        self._parts[layer][part] = self._arithmetic.unpack(arrived)
        return arrived

    def update(self, layer: int) -> Any:
        """Take a step along the mean of all gradients; return the new weights."""
        total = np.concatenate(self._parts.pop(layer))
        self._weights[layer] = stepped(self._weights[layer], total, self._members)
        self._arithmetic.stepped(total)
        return self._arithmetic.pack(self._weights[layer])

    def weights(self, layer: int) -> Any:
        """Return the first weights of a layer."""
        return self._arithmetic.pack(self._weights[layer])


class Trainer:
    """The driver of replicas, and of what their strategy needs."""

    def __init__(
        self,
        ray: Any,
        strategy: str,
        replicas: int,
        shape: Shape,
        arithmetic: Arithmetic | None = None,
        placed: Callable[[int], dict[str, Any]] = lambda number: {},
    ) -> None:
        """Start the actors. `placed` returns the options of the actors beside a replica, such as
        the resources of its node."""
        self._ray = ray
        self._shape = shape
        how = arithmetic or Arithmetic()
        self._replicas = [
            ray.remote(num_cpus=1, **placed(number))(Replica).remote(shape, how, number)
            for number in range(replicas)
        ]
        beside = [{"num_cpus": 0, **placed(number)} for number in range(replicas)]
        self._reducers: list[Any] = []
        self._shards: list[Any] = []
        if strategy == ALLREDUCE:
            self._reducers = [
                ray.remote(**options)(Reducer).remote(shape, how, replicas) for options in beside
            ]
        elif strategy == PARAMETER_SERVER:
            self._shards = [ray.remote(**options)(Shard).remote(shape, how) for options in beside]
        else:
            raise ValueError(f"no strategy {strategy!r}: give one of {', '.join(STRATEGIES)}")
        layers = range(shape.layers)
        self._weights = [
            [reducer.weights.remote(layer) for layer in layers] for reducer in self._reducers
        ] or [[self._shard(layer).weights.remote(layer) for layer in layers]] * replicas

    def train(self, steps: int) -> list[float]:
        """Train for so many steps; return the mean loss of the replicas before each."""
        losses: list[list[Any]] = []
        found: list[float] = []
        for _ in range(steps):
            losses.append(self._step())
            if len(losses) == STEPS_IN_FLIGHT:
                found.append(self._mean(losses.pop(0)))
        found += [self._mean(each) for each in losses]
        # The last weights are part of the last step. All replicas of a parameter server share them.
        last = list(dict.fromkeys(ref for weights in self._weights for ref in weights))
        self._ray.wait(last, num_returns=len(last), fetch_local=False)
        return found

    def _mean(self, losses: list[Any]) -> float:
        return float(np.mean(self._ray.get(losses)))

    def _shard(self, layer: int) -> Any:
        return self._shards[layer % len(self._shards)]

    def _step(self) -> list[Any]:
        """Submit a step; return references to the losses."""
        for weights, replica in zip(self._weights, self._replicas, strict=True):
            for layer, each in enumerate(weights):
                replica.forward.remote(layer, each)
        losses = [replica.loss.remote() for replica in self._replicas]
        new: list[list[Any]] = []
        for layer in reversed(range(self._shape.layers)):
            gradients = [replica.backward.remote(layer) for replica in self._replicas]
            if self._reducers:
                new.insert(0, self._allreduce(layer, gradients))
            else:
                updated = self._shard(layer).update.remote(layer, *gradients)
                new.insert(0, [updated] * len(self._replicas))
        self._weights = [list(each) for each in zip(*new, strict=True)]
        return losses

    def _allreduce(self, layer: int, gradients: list[Any]) -> list[Any]:
        """Add up a layer's gradients in a ring; return each reducer's new weights."""
        ring = list(enumerate(self._reducers))
        count = len(ring)
        sent = [each.begin.remote(layer, gradients[n], n) for n, each in ring]
        for hop in range(1, count):
            sent = [each.add.remote(layer, (n - hop) % count, sent[n - 1]) for n, each in ring]
        for hop in range(count - 1):
            sent = [each.take.remote(layer, (n - hop) % count, sent[n - 1]) for n, each in ring]
        return [each.update.remote(layer) for each in self._reducers]


def main(ray: Any, strategy: str = PARAMETER_SERVER) -> list[float]:
    """Return the loss before each step."""
    replicas, steps = 2, 30
    losses = Trainer(ray, strategy, replicas, Shape()).train(steps)
    print(f"{replicas} replicas, {strategy}: loss {losses[0]:.2f}, then {losses[-1]:.2f}")
    return losses


if __name__ == "__main__":
    import ray

    main(ray, *sys.argv[1:2])
