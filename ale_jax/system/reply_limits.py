"""How long the replies of a task may be, and how many, as its domain and the run say."""

from __future__ import annotations

from ale_jax.config.run import RunConfig
from ale_jax.gateway.custody.ledger import LimitsOf, ReplyLimits
from ale_jax.records import Task
from ale_jax.worlds.families import open_families


def reply_limits(config: RunConfig) -> LimitsOf:
    """Returns a function that says them of each task of the run."""
    families = open_families(config.domains, config.worlds.folder)

    def limits_of(task: Task) -> ReplyLimits:
        domain = families[task.family].domain
        return ReplyLimits(
            domain.reply_tokens or config.rollout.max_reply_tokens,
            domain.turns or config.agent.turns,
        )

    return limits_of
