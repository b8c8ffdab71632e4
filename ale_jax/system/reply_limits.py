"""How long the replies of a task may be, and how many, as its domain and the run say."""

from __future__ import annotations

from ale_jax.config.run import RunConfig
from ale_jax.gateway.custody.ledger import LimitsOf, ReplyLimits
from ale_jax.records import Task
from ale_jax.worlds.families import families_of


def reply_limits(config: RunConfig) -> LimitsOf:
    """Returns a function that says them of each task of the run."""
    families = families_of(config)

    def limits_of(task: Task) -> ReplyLimits:
        limits = families[task.family].limits
        return ReplyLimits(
            limits.reply_tokens or config.rollout.max_reply_tokens,
            limits.turns or config.agent.turns,
            limits.context or config.engine.max_sequence_length,
        )

    return limits_of
