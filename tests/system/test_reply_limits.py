"""How long replies may be, and how many, as the domain of a task says or else the run."""

from ale_jax.gateway.custody.ledger import ReplyLimits
from ale_jax.records import Task
from ale_jax.system.checks import checked_config
from ale_jax.system.reply_limits import reply_limits
from tests.config.smoke import smoke_with


def test_the_limits_are_those_of_the_domain_or_of_the_run():
    ours = {"world": "countdown", "families": ("countdown3",), "turns": 1, "reply_tokens": 3}
    ours |= {"context": 40}
    both = (ours, {"world": "shell", "families": ("trail",)})
    limits_of = reply_limits(checked_config(smoke_with({"worlds.train": both})))
    assert limits_of(Task("countdown3", 1, "train")) == ReplyLimits(3, 1, 40)
    assert limits_of(Task("trail", 1, "train")) == ReplyLimits(8, 2, 384)
