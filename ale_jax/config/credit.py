"""What of an episode earns credit."""

from __future__ import annotations

import dataclasses

from ale_jax.config.setting import Settings, setting

JUDGED, FILTERED, PENALISED = "judged", "filtered", "penalised"
EPISODE, CONVERSATION = "episode", "conversation"
REPLACED, SIDE = "replaced", "side"  # as in `records.ReplyKind`


@dataclasses.dataclass(frozen=True)
class CreditHypers(Settings):
    """What of an episode earns credit. A reply that the full context cut before it was an action
    never does.
    """

    overlong: str = setting(
        JUDGED,
        "what becomes of an episode that a limit ended: of turns, of time, of the context, or of "
        'the tokens of the reply that ended it. "judged": it counts as it stands. "filtered": none '
        "of its replies is learned from; its outcome stays in the mean of its group (DAPO's "
        'overlong filtering). "penalised": `overlong_penalty` is added to its outcome. '
        "Evaluations, and what dynamic sampling calls equal, do not know of it.",
        choices=(JUDGED, FILTERED, PENALISED),
    )
    overlong_penalty: float = setting(
        0.0,
        'added to the outcome of such an episode if overlong is "penalised".',
        at_least=-1e6,
        at_most=0.0,
        remedy="a limit must not be rewarded",
    )
    uncredited: tuple[str, ...] = setting(
        (REPLACED, SIDE),
        "replies to an agent's program that earn no credit, and are context where something "
        "follows them: those that it replaced before they acted (it asked again, chose another one "
        "of several, or put other words in its place), and those to calls on the side (without "
        "tools, in an episode that has some, and read by no later call: a title).",
        choices=(REPLACED, SIDE),
    )
    trajectory: str = setting(
        EPISODE,
        "what `loss.aggregation` counts as a trajectory, where an agent's program has several "
        'conversations: all those of an episode together ("episode"), or each of them. An agent '
        "that rewrites its history has as many as it has replies.",
        choices=(EPISODE, CONVERSATION),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.overlong == PENALISED) != (self.overlong_penalty != 0.0):
            raise ValueError(
                f"overlong_penalty {self.overlong_penalty} does not fit overlong {self.overlong}: "
                f"give it below 0 with {PENALISED}, and leave it at 0.0 otherwise"
            )


EVERY_ACTION = CreditHypers()  # the defaults: whatever was carried out is judged as it stands
