"""The network of `applications.sgd` on ranks of MPI, with Horovod's algorithm; `mpi` runs it.

Every rank is a replica with all weights. The allreduce of a layer's gradient begins as soon as it
is there, and goes on while the rank works on the layers below.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI

from raytwin.scenarios.applications.sgd import RATE, Network, Shape


def main(
    comm: Any, layers: int, width: int, batch: int, warm_up: int, steps: int
) -> dict[str, Any]:
    """Return the seconds of `steps` steps after the first ones, and the mean loss of each step."""
    shape = Shape(layers, width, batch)
    network = Network(shape, comm.rank)
    weights = [shape.weights(layer) for layer in range(layers)]
    losses: list[float] = []
    begun_s = 0.0
    for step in range(warm_up + steps):
        if step == warm_up:
            comm.Barrier()
            begun_s = MPI.Wtime()
        for layer in range(layers):
            network.forward(layer, weights[layer])
        sums, under_way = {}, []
        for layer in reversed(range(layers)):
            gradient = np.ascontiguousarray(network.backward(layer))
            sums[layer] = np.empty_like(gradient)
            under_way.append((gradient, comm.Iallreduce(gradient, sums[layer])))
        MPI.Request.Waitall([request for _, request in under_way])
        for layer, total in sums.items():
            weights[layer] = weights[layer] - RATE / comm.size * total
        losses.append(comm.allreduce(network.loss) / comm.size)
    elapsed_s = comm.allreduce(MPI.Wtime() - begun_s, MPI.MAX)
    return {"elapsed_s": elapsed_s, "losses": losses}
