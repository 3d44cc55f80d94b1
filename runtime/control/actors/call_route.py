"""One actor as its callers' node sees it, and the calls that are under way to it.

A caller that runs again makes its calls again. If it ran on another node meanwhile, the
actor's node has replied to the client there, which called last (`ReplyCache`). So this node
sends a call without a reply once more, for its caller of now. On the actor's node that one
takes the place of the first, or gets the reply; the call runs once::

    submitted again ──it waits here, or leaves with this turn──> takes the other's place
                    ──it was sent──────────────────────────────> sent again as it was, as soon
                                                                 as the actor takes calls
"""

from __future__ import annotations

from raytwin.runtime.control.core.call_batches import is_run, singles
from raytwin.runtime.control.gcs.actor_table import ALIVE, PENDING
from raytwin.runtime.control.messages import TaskSpec
from raytwin.runtime.control.messages.errors import Failure


class CallRoute:
    """Where one actor is, and the calls that are under way to it."""

    __slots__ = (
        "actor", "again", "asked", "cancelled", "early", "incarnation", "logged", "node", "out",
        "probed", "probes", "reason", "repeated", "sent", "starting", "state",
        "waiting",
    )  # fmt: skip

    def __init__(self, actor: bytes) -> None:
        self.actor = actor
        self.state = PENDING
        self.node = -1
        self.incarnation = -1
        self.logged = False
        self.reason: Failure | None = None
        """Why it is dead or starts again."""
        self.waiting: list[TaskSpec] = []
        self.sent: dict[bytes, TaskSpec] = {}
        """Calls without a result, by array, in order."""
        self.out: list[TaskSpec] = []
        """Calls to send with this turn."""
        self.again = 0
        """How many calls at the front of `out` were sent to an earlier incarnation."""
        self.probes: list[TaskSpec] = []
        """Calls to ask this incarnation for, which is not to run them."""
        self.cancelled: list[bytes] = []
        """Calls to cancel as soon as it takes calls: they may have begun before."""
        self.asked: set[bytes] = set()
        """Calls that the actor was asked to cancel. No later incarnation is to run them: the reply
        that one has not begun may be lost with this incarnation."""
        self.probed: set[bytes] = set()
        """Calls that this incarnation was asked for."""
        self.repeated: dict[bytes, TaskSpec] = {}
        """Calls that were sent, and submitted again since."""
        self.starting: tuple[int, int] | None = None
        """Node and incarnation of an actor that is being reconstructed, once it may be asked."""
        self.early: list[TaskSpec] = []
        """Calls to ask it for with this turn."""
        """Calls with results to acknowledge to the GCS, which keeps their replies until then."""

    def take_apart(self) -> None:
        """Make single calls of all batches."""
        runs = {id(spec): spec for spec in (*self.sent.values(), *self.out) if is_run(spec)}
        if not runs:
            return
        calls = {key: {call.array: call for call in singles([run])} for key, run in runs.items()}
        for call, spec in self.sent.items():
            if id(spec) in calls:
                self.sent[call] = calls[id(spec)][call]
        out: list[TaskSpec] = []
        for spec in self.out:
            out += calls[id(spec)].values() if id(spec) in calls else [spec]
        self.out = out

    def unwanted(self, probes: list[TaskSpec]) -> list[bytes]:
        """Return which of these calls were to be cancelled."""
        return [spec.array for spec in probes if spec.array in self.asked]

    def submit_again(self, spec: TaskSpec) -> None:
        """Take a call without a result that its caller makes again."""
        call = spec.array
        old = self.sent.get(call)
        if old is None:
            self.waiting = [spec if other.array == call else other for other in self.waiting]
            return
        if is_run(old):
            self.take_apart()
            old = self.sent[call]
        # Retries count the actor's failures, however often its caller runs.
        spec.retries = old.retries
        self.sent[call] = spec
        for leaving in (self.out, self.probes):
            for at, other in enumerate(leaving):
                if other is old:
                    leaving[at] = spec
                    return
        self.repeated[call] = spec

    def send_repeated(self) -> None:
        """Put repeated calls in front of the calls of this turn, if the actor takes calls."""
        if self.state != ALIVE or not self.repeated:
            return
        repeated, self.repeated = self.repeated, {}
        left = [spec for call, spec in repeated.items() if self.sent.get(call) is spec]
        self.out = [spec for spec in left if spec.array not in self.probed] + self.out
        self.probes += [spec for spec in left if spec.array in self.probed]
