"""Checks of a config's worlds: that they are there, and can give what the run asks of them."""

from __future__ import annotations

from ale_jax.config.run import RunConfig
from ale_jax.system.recorded_checks import check_recorded
from ale_jax.worlds.api import has_own
from ale_jax.worlds.families import Family, PlayableFamilies
from ale_jax.worlds.names import known_names
from ale_jax.worlds.schedule import Schedule


def needs_sandbox(config: RunConfig) -> bool:
    """Tells whether some task of a run needs a sandbox, which its family's first one shows."""
    schedule = Schedule.of(config)
    worlds = PlayableFamilies(schedule.families, config.sandbox)
    return any(map(worlds.sandbox, schedule.first_tasks()))


def check_tasks(config: RunConfig) -> None:
    """Raises ValueError unless the worlds are there and have the tasks that the config asks for."""
    if not config.worlds.train:
        raise ValueError(
            "worlds.train is empty: name worlds, as in ({'world': 'shell', 'families': ('sort',)},)"
            f"; there are {', '.join(known_names())}"
        )
    schedule = Schedule.of(config)
    trained, held_out = schedule.train_families, schedule.held_out_families
    for name, families in (("train", trained), ("held_out", held_out)):
        if twice := [each for each in families if families.count(each) > 1]:
            raise ValueError(f"worlds.{name} names {twice[0]} twice: each comes up equally often")
    if both := set(trained) & set(held_out):
        raise ValueError(
            f"{', '.join(sorted(both))} cannot be trained on and held out: name it in one list"
        )
    if any(domain.pass_rates for domain in config.worlds.held_out):
        raise ValueError(
            "worlds.held_out: pass_rates choose training items, and these are only evaluated: name "
            "them in worlds.train"
        )
    shown = schedule.families.of(*schedule.demonstrated)
    if twice := [each for each in shown if shown.count(each) > 1]:
        raise ValueError(f"{twice[0]} stands in warm_start.domains twice: name it in one")
    if config.eval.held_out_tasks and not held_out:
        raise ValueError(
            f"eval.held_out_tasks {config.eval.held_out_tasks} needs worlds.held_out: "
            "name some, or set it to 0"
        )
    wanted = [("eval.tasks", config.eval.tasks, trained)]
    if config.warm_start.max_steps:
        wanted.append(("warm_start.probe_tasks", config.warm_start.probe_tasks, shown))
    if config.eval.held_out_tasks:
        wanted.append(("eval.held_out_tasks", config.eval.held_out_tasks, held_out))
    for name, tasks, families in wanted:
        if tasks < len(families):
            raise ValueError(f"{name} {tasks} must be at least {len(families)}: one per family")
    _check_oracles(config, schedule)
    check_recorded(config)
    for family in schedule.families:
        _check_limits(config, family)
    _check_verdicts(config, schedule)
    schedule.check(config)


def _check_verdicts(config: RunConfig, schedule: Schedule) -> None:
    """ValueError if reward workers would have nothing to judge."""
    wanted = config.rollout.reward_workers
    if wanted and not any(family.world.is_judged_apart for family in schedule.families):
        names = ", ".join(sorted({family.domain.world for family in schedule.families}))
        raise ValueError(
            f"rollout.reward_workers {wanted} have nothing to judge: {names} judge within the "
            "episode, where its sandbox is, and no world has `is_judged_apart`: set it to 0"
        )


def _check_limits(config: RunConfig, family: Family) -> None:
    limits, world = family.limits, f"of world {family.domain.world}"
    longest = config.engine.max_sequence_length
    if limits.turns > config.agent.turns:
        raise ValueError(
            f"turns {limits.turns} {world} must be at most agent.turns {config.agent.turns}: raise "
            "that"
        )
    if limits.context > longest:
        raise ValueError(
            f"context {limits.context} {world} must be at most engine.max_sequence_length "
            f"{longest}: lower it"
        )
    if limits.reply_tokens >= (limits.context or longest):
        of = "its context" if limits.context else "engine.max_sequence_length"
        raise ValueError(
            f"reply_tokens {limits.reply_tokens} {world} must be less than {of} "
            f"{limits.context or longest}: lower it"
        )


def _check_oracles(config: RunConfig, schedule: Schedule) -> None:
    """ValueError if a family is to be demonstrated that has no oracle."""
    reasons = {
        f"warm_start.max_steps {config.warm_start.max_steps}": config.warm_start.max_steps > 0,
        "a tokenizer of its own (tokenizer.path and weights are empty)": not (
            config.tokenizer.path or config.weights
        ),
    }
    needed = {name: schedule.demonstrated for name, holds in reasons.items() if holds}
    if config.resampling.wants_oracles:
        needed[f"resampling.scheme {config.resampling.scheme}"] = schedule.train
    for reason, domains in needed.items():
        for name in schedule.families.of(*domains):
            if not has_own(schedule.families[name].world, "oracle"):
                raise ValueError(
                    f"family {name} has no oracle, and {reason} needs its demonstrations: change "
                    "that, or name other families in warm_start.domains"
                )
