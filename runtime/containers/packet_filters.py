"""Broken links: packet filters in the network name space of a container.

A filter acts on one direction between two ends, and stands in the container of one of them. Ends
are told apart by address and port, since node 0 and the head share this machine's:

    packets from a to b        in b's container: INPUT        in a's container: OUTPUT
    on connections to b        from a's address, to b's port
    on connections to a        from a's address and port

The kernel answers a packet that is reset with RST, as a host does that knows no such connection.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

ANY_PORT = 0


class Verdict(enum.Enum):
    """The fate of a packet that a filter matches."""

    DROP = "drop"
    RESET = "reset"


@dataclass(frozen=True)
class LinkFault:
    """A fault of one direction of a link."""

    verdict: Verdict
    share: float = 1.0
    """How many of the packets it hits."""


@dataclass(frozen=True)
class End:
    """One end of a link: an address, and the port at which it takes connections."""

    host: str
    port: int


def commands(
    source: End, destination: End, at_source: bool, fault: LinkFault, add: bool
) -> list[list[str]]:
    """Return the commands that add or delete the filters of one direction of a link.

    `at_source`: whether they run in the source's container, or else in the destination's.
    """
    chain = ["OUTPUT", "-d", destination.host] if at_source else ["INPUT", "-s", source.host]
    share = [] if fault.share >= 1 else [
        "-m", "statistic", "--mode", "random", "--probability", f"{fault.share:.6f}"
    ]  # fmt: skip
    verdict = {
        Verdict.DROP: ["DROP"],
        Verdict.RESET: ["REJECT", "--reject-with", "tcp-reset"],
    }[fault.verdict]
    return [
        ["iptables", "-w", "-A" if add else "-D", *chain, "-p", "tcp", which, str(port), *share,
         "-j", *verdict]
        for which, port in (("--dport", destination.port), ("--sport", source.port))
        if port != ANY_PORT
    ]  # fmt: skip
