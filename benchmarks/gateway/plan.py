"""How much of everything, for the full benchmark and with --quick."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Plan:
    """fuzz_requests, branch_conversations, drift_conversations (of all families together): how
    many. overhead_calls: of all clients together, in each of overhead_rounds, in whole
    conversations of overhead_turns; each client has one conversation more, and clients that do not
    hurry have only that one. pause_s: between two of their calls. resent_turns: of a history;
    resent_rounds: how often it is measured. seed: of all that is drawn. constrained_samples:
    replies that are held to a call; constrained_rounds: how often their cost is measured.
    mask_calls: of the episode whose masks are counted. reply_s: of the policy's reply to impatient
    clients; patience_s: of those that hang up in silence."""

    fuzz_requests: int
    branch_conversations: int
    drift_conversations: int
    overhead_calls: int
    overhead_rounds: int
    overhead_turns: int
    pause_s: float
    resent_turns: int
    resent_rounds: int
    constrained_samples: int
    constrained_rounds: int
    mask_calls: int
    reply_s: float
    patience_s: float
    seed: int = 0


FULL = Plan(
    fuzz_requests=10_000,
    branch_conversations=10_000,
    drift_conversations=1_000,
    overhead_calls=1_600,
    overhead_rounds=3,
    overhead_turns=10,
    pause_s=1.0,
    resent_turns=20,
    resent_rounds=5,
    constrained_samples=10_000,
    constrained_rounds=5,
    mask_calls=50,
    reply_s=10.0,
    patience_s=3.0,
)
QUICK = Plan(
    fuzz_requests=300,
    branch_conversations=200,
    drift_conversations=12,
    overhead_calls=100,
    overhead_rounds=1,
    overhead_turns=2,
    pause_s=0.1,
    resent_turns=4,
    resent_rounds=1,
    constrained_samples=40,
    constrained_rounds=1,
    mask_calls=3,
    reply_s=4.0,
    patience_s=2.0,
)
