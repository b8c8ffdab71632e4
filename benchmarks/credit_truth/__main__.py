"""Measures what each chunk of a trajectory was worth, and which credit algorithms assign to it.

    python -m benchmarks.credit_truth [--quick] [--out=FILE]

A policy of partial success plays groups of attempts at vaults, trails and lanes. From the state
before each chunk of each attempt, it plays on `rollouts` times. The share of successes is P(k), and
after the last chunk P is the attempt's reward. The worth of a chunk is P(k+1) - P(k). On the same
attempts, the credit of IPA, GRPO, GiGPO, GAE, step-level returns and attention credit is computed.
`notebooks/credit_truth.ipynb` compares the two. Attempts that begin with the same replies are in
the same state, because the worlds are deterministic; such a state is measured once.

The policy is made first, in runs/credit_truth, in two minutes on two idle cores. --quick makes an
untrained one in runs/quick, and few rollouts.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ale_jax.config.run import RunConfig
from ale_jax.data.replay import Group
from ale_jax.files import write_json
from ale_jax.learn.step import ModelSpec
from ale_jax.model.sharding import make_mesh
from ale_jax.model.weights.shape import policy_shape
from ale_jax.monitor.evaluations import EVALUATIONS_FILE, SUMMARY_FILE, read_evaluations
from ale_jax.monitor.run_files import CONFIG_FILE
from ale_jax.records import EpisodeKey, RolloutRequest, Task, Trajectory
from ale_jax.system.checks import stored_config
from ale_jax.system.states import Newest, newest_state
from ale_jax.system.workdir import Workdir
from ale_jax.worlds.schedule import Schedule
from benchmarks.credit_step import about
from benchmarks.credit_truth.assigned import Credits, assigned, explained_variance, train_critic
from benchmarks.credit_truth.player import Player, continuation
from benchmarks.experiments.runs import QUICK
from benchmarks.launching import launch

OUT = Path("notebooks/recorded/credit_truth.json")
CONFIG = "configs/experiments/credit_truth.py"
PHASE = "truth"  # of the episodes' keys
CRITIC_TASKS, ANCHORS = 1000, 100_000  # where their groups' numbers begin
FEWEST_CHUNKS = 5


@dataclasses.dataclass(frozen=True)
class Plan:
    """groups: measured per family, each with `members` attempts. rollouts: from each state.
    critic_groups: attempts at other tasks from which the critic learns, `critic_passes` times, in
    updates of `critic_update` groups."""

    groups: int = 2
    members: int = 8
    rollouts: int = 200
    critic_groups: int = 48
    critic_passes: int = 6
    critic_update: int = 8


QUICK_PLAN = Plan(groups=1, members=4, rollouts=3, critic_groups=2, critic_passes=1)


def main(arguments: list[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.credit_truth", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args(arguments)
    plan = QUICK_PLAN if options.quick else Plan()
    run = make_policy(options.quick)
    config = stored_config(run / CONFIG_FILE)
    with Workdir.open(run, config) as workdir:
        newest = newest_state(config, workdir.path)
    measured = measure(config, newest, plan, need_both=not options.quick)
    (final,) = [e for e in read_evaluations(run / EVALUATIONS_FILE) if e.name == "final"]
    policy = {name: dataclasses.asdict(family) for name, family in final.families.items()}
    facts = about("python -m benchmarks.credit_truth") | dataclasses.asdict(plan)
    write_json(options.out, facts | {"policy": policy} | measured, indent=None)
    print(options.out)
    return 0


def make_policy(quick: bool) -> Path:
    """The folder of the policy's run, which is made unless it is finished."""
    run = Path("runs/quick/credit_truth" if quick else "runs/credit_truth")
    if not (run / SUMMARY_FILE).exists():
        changes = dict(QUICK) | {"rl.steps": 0} if quick else {}
        launch(CONFIG, run, changes)
    return run


def measure(config: RunConfig, newest: Newest, plan: Plan, need_both: bool) -> dict[str, Any]:
    """need_both: whether a group needs a success and a failure to be measured."""
    params, start = newest.state.params, time.monotonic()
    with Player(config, newest.tokenizer, params) as player:
        groups = [
            group
            for family in Schedule.of(config).train_families
            for group in itertools.islice(
                _groups(player, config, family, plan.members, need_both), plan.groups
            )
        ]
        _say(start, f"{len(groups)} groups")
        others = _play_groups(player, _other_tasks(config, plan), plan.members)
        _say(start, f"{len(others)} groups for the critic")
        rates = {}
        for number, group in enumerate(groups):
            rates |= _rates(player, number, group, plan.rollouts, ANCHORS + len(rates))
            _say(start, f"{len(rates)} states of {number + 1} groups")
    policy = policy_shape(config, newest.tokenizer.vocab_size)
    model = ModelSpec(policy, make_mesh(config.mesh), config.learn)
    critic = train_critic(others, model, params, plan.critic_passes, plan.critic_update)
    numbered = [dataclasses.replace(group, index=n) for n, group in enumerate(groups)]
    credits = assigned(numbered, critic, model, params)
    return {
        "critic_explained_variance": explained_variance(numbered, critic),
        "states": len(rates),
        "seconds": round(time.monotonic() - start),
        "trajectories": [
            _record(n, t, rates, credits, plan.rollouts)
            for n, group in enumerate(groups)
            for t in group.members
        ],
    }


def _groups(
    player: Player, config: RunConfig, family: str, members: int, need_both: bool
) -> Iterator[Group]:
    """Groups of attempts at unseen tasks, of which one has FEWEST_CHUNKS chunks or more."""
    keys = Schedule.of(config).evaluation(PHASE, config.eval)
    tasks = [key.task for key in keys if key.task.family == family]
    for number, task in enumerate(tasks):
        (group,) = _play_groups(player, {number: task}, members)
        outcomes = {t.episode.is_solved for t in group.members}
        long = max(len(t.turns) for t in group.members) >= FEWEST_CHUNKS
        if (long and len(outcomes) == 2) or not need_both:
            yield group


def _other_tasks(config: RunConfig, plan: Plan) -> dict[int, Task]:
    schedule = Schedule.of(config)
    numbers = range(CRITIC_TASKS, CRITIC_TASKS + plan.critic_groups)
    return {number: schedule.train_task(number) for number in numbers}


def _play_groups(player: Player, tasks: dict[int, Task], members: int) -> list[Group]:
    keys = [EpisodeKey(PHASE, g, m, task) for g, task in tasks.items() for m in range(members)]
    played = list(player.play(map(RolloutRequest, keys)))
    return [Group(g, tuple(t for t in played if t.episode.key.group == g)) for g in tasks]


State = tuple[int, tuple[str, ...]]  # number of the group, and the replies so far


def _rates(
    player: Player, number: int, group: Group, rollouts: int, first: int
) -> dict[State, int]:
    """Successes of `rollouts` episodes from each state before a chunk."""
    states: dict[State, Trajectory] = {}
    for trajectory in group.members:
        for k in range(len(trajectory.turns)):
            states.setdefault(_state(number, trajectory, k), trajectory)
    requests = [
        continuation(EpisodeKey(PHASE, first + n, m, t.episode.key.task, len(replies)), t)
        for n, ((_, replies), t) in enumerate(states.items())
        for m in range(rollouts)
    ]
    won = [t.episode.is_solved for t in player.play(requests)]
    return {state: sum(won[n * rollouts : (n + 1) * rollouts]) for n, state in enumerate(states)}


def _state(number: int, trajectory: Trajectory, k: int) -> State:
    return number, tuple(turn.action_text for turn in trajectory.turns[:k])


def _record(
    number: int,
    trajectory: Trajectory,
    rates: dict[State, int],
    credits: dict[str, Credits],
    rollouts: int,
) -> dict[str, Any]:
    """successes: of `rollouts` episodes from the state before each chunk. credit: 0 in a group of
    equal outcomes, which has no gradient and so is not in the batches."""
    episode, turns = trajectory.episode, trajectory.turns
    member, none = (number, episode.key.member), [0.0] * len(turns)
    return {
        "group": number,
        "family": episode.key.task.family,
        "item": episode.key.task.item,
        "reward": episode.reward,
        "saw": [turn.prompt_text for turn in turns],
        "wrote": [turn.action_text for turn in turns],
        "tokens": [len(turn.action_ids) for turn in turns],
        "successes": [rates[_state(number, trajectory, k)] for k in range(len(turns))],
        "credit": {
            name: [float(f"{c:.6g}") for c in of.get(member, none)] for name, of in credits.items()
        },
    }


def _say(start: float, text: str) -> None:
    print(f"[{time.monotonic() - start:.0f}s] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
