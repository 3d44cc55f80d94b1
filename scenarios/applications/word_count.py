"""Map-reduce: mappers count words in their texts, reducers add up a share of all words."""

from __future__ import annotations

import zlib
from collections import Counter
from typing import Any

TEXTS = [
    "a node fails and a task runs again",
    "a task waits for an object and a node sends the object",
    "an actor remembers what a task forgets",
    "the object is lost and the task makes the object again",
]
REDUCERS = 3


def main(ray: Any) -> list[tuple[str, int]]:
    """Return the five most frequent words and how often each occurs."""

    @ray.remote(num_returns=REDUCERS)
    def count_words(text: str) -> list[dict[str, int]]:
        shares: list[Counter[str]] = [Counter() for _ in range(REDUCERS)]
        for word in text.split():
            # The same word goes to the same reducer, whoever finds it.
            shares[zlib.crc32(word.encode()) % REDUCERS][word] += 1
        return [dict(share) for share in shares]

    @ray.remote
    def add_up(*shares: dict[str, int]) -> dict[str, int]:
        total: Counter[str] = Counter()
        for share in shares:
            total.update(share)
        return dict(total)

    mapped = [count_words.remote(text) for text in TEXTS]
    reduced = [add_up.remote(*shares) for shares in zip(*mapped, strict=True)]
    counts = {word: n for share in ray.get(reduced) for word, n in share.items()}
    top = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:5]
    print("most frequent:", ", ".join(f"{word} ({n})" for word, n in top))
    return top


if __name__ == "__main__":
    import ray

    main(ray)
