"""Q-learning: four simulation actors learn the way through a 5x5 maze together.

In each round every simulator plays some games by the policy of the round, which is
put into the object store once, and returns what it experienced; the learner, here,
makes the next policy of all of it.
"""

# mypy: disable-error-code="attr-defined"
# A class that was decorated has `remote`; that is known only when it runs.
from __future__ import annotations

import random
from collections import deque
from typing import Any

MAZE = [
    "S.#..",
    "..#.#",
    ".#...",
    "...#.",
    ".#..G",
]
MOVES = [(-1, 0), (0, 1), (1, 0), (0, -1)]
START, GOAL = (0, 0), (4, 4)
SIMULATORS, ROUNDS, GAMES, STEPS_MAX = 4, 30, 5, 60
RATE, DISCOUNT, CURIOSITY = 0.5, 0.95, 0.3

Cell = tuple[int, int]
Policy = dict[tuple[Cell, int], float]
"""What a move from a cell is worth."""


def step(cell: Cell, move: int) -> Cell:
    """Return where a move leads; into a wall, nowhere."""
    row, column = cell[0] + MOVES[move][0], cell[1] + MOVES[move][1]
    free = 0 <= row < 5 and 0 <= column < 5 and MAZE[row][column] != "#"
    return (row, column) if free else cell


def best_move(policy: Policy, cell: Cell) -> int:
    return max(range(len(MOVES)), key=lambda move: policy.get((cell, move), 0.0))


def shortest_path_length() -> int:
    """Return the least number of moves, by breadth-first search."""
    lengths, queue = {START: 0}, deque([START])
    while queue:
        cell = queue.popleft()
        for move in range(len(MOVES)):
            following = step(cell, move)
            if following not in lengths:
                lengths[following] = lengths[cell] + 1
                queue.append(following)
    return lengths[GOAL]


def main(ray: Any) -> list[Cell]:
    """Return the path that was learned; it is as short as any."""

    @ray.remote
    class Simulator:
        def __init__(self, seed: int) -> None:
            self.random = random.Random(seed)

        def play(self, policy: Policy) -> list[tuple[Cell, int, Cell]]:
            """Return the moves of some games: (cell, move, where it led)."""
            seen = []
            for _ in range(GAMES):
                cell = START
                for _ in range(STEPS_MAX):
                    curious = self.random.random() < CURIOSITY or not policy
                    move = self.random.randrange(4) if curious else best_move(policy, cell)
                    following = step(cell, move)
                    seen.append((cell, move, following))
                    cell = following
                    if cell == GOAL:
                        break
            return seen

    simulators = [Simulator.remote(seed) for seed in range(SIMULATORS)]
    policy: Policy = {}
    for _ in range(ROUNDS):
        shared = ray.put(policy)
        for seen in ray.get([simulator.play.remote(shared) for simulator in simulators]):
            for cell, move, following in reversed(seen):  # the goal's worth travels back fast
                ahead = max(policy.get((following, then), 0.0) for then in range(len(MOVES)))
                worth = 1.0 if following == GOAL else DISCOUNT * ahead
                old = policy.get((cell, move), 0.0)
                policy[cell, move] = old + RATE * (worth - old)

    path = [START]
    while path[-1] != GOAL and len(path) <= STEPS_MAX:
        path.append(step(path[-1], best_move(policy, path[-1])))
    if len(path) - 1 != shortest_path_length():
        raise RuntimeError(f"{len(path) - 1} moves, but {shortest_path_length()} are enough")
    print(f"the way out in {len(path) - 1} moves:", " ".join(f"{r},{c}" for r, c in path))
    return path


if __name__ == "__main__":
    import ray

    main(ray)
