"""Map-reduce over generated documents: how often does each word occur?

Each mapper makes the documents of its partition, counts their words, and returns a share of the
counts for each reducer: by the word, so that all counts of a word meet. Few words are frequent, and
many are rare, as in natural language (Zipf's law).

    python map_reduce.py [WORDS_PER_PARTITION]
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from typing import Any

PARTITIONS, REDUCERS, VOCABULARY = 16, 4, 20_000
WORDS = 800_000


def main(ray: Any, words: int = WORDS) -> list[tuple[str, int]]:
    """Return the three most frequent words, and how often each occurs among all partitions."""

    @ray.remote
    def map_partition(partition: int) -> Any:
        draw = random.Random(partition).random
        # Of a density that falls as 1 / rank: the rank grows exponentially with a uniform number.
        counts = Counter(f"word{int(VOCABULARY ** draw())}" for _ in range(words))
        shares: list[dict[str, int]] = [{} for _ in range(REDUCERS)]
        for word, count in counts.items():
            shares[int(word[4:]) % REDUCERS][word] = count
        return shares

    @ray.remote
    def reduce_share(*shares: dict[str, int]) -> dict[str, int]:
        total: Counter[str] = Counter()
        for share in shares:
            total.update(share)
        return dict(total)

    mapper = map_partition.options(num_returns=REDUCERS)
    mapped = [mapper.remote(partition) for partition in range(PARTITIONS)]
    reduced = [reduce_share.remote(*shares) for shares in zip(*mapped, strict=True)]
    counts = Counter[str]()
    for share in ray.get(reduced):
        counts.update(share)
    top = counts.most_common(3)
    print(f"{counts.total():,} words; the most frequent:", ", ".join(f"{w} ({n})" for w, n in top))
    return top


if __name__ == "__main__":
    import ray

    ray.init()
    main(ray, *map(int, sys.argv[1:]))
