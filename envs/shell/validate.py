"""Checks that every task can be solved, and that none is solved by doing nothing.

python -m ale_jax.envs.shell.validate --seeds=200 --runtime=auto

Families that need no sandbox are checked as well. With Docker, the result of a check of the image
is stored in the image registry.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import statistics
import sys
from collections.abc import Sequence

from ale_jax.agent.loop import ScriptedPolicy, play
from ale_jax.config.agent import AgentLimits
from ale_jax.envs.registry import all_families, kind_of, make_env
from ale_jax.envs.shell.families import FAMILIES
from ale_jax.envs.transcripts import play_oracle
from ale_jax.records import Episode, EpisodeKey, Task
from ale_jax.sandbox.api import Runtime, Sandbox, SandboxError, SandboxStartError
from ale_jax.sandbox.hub.hub import Hub
from ale_jax.sandbox.hub.store import Verification
from ale_jax.sandbox.runtime import pick_runtime
from ale_jax.sandbox.spec import SandboxSpec
from ale_jax.status import STATUS_RULES

LABELS = {"role": "validate"}


@dataclasses.dataclass(frozen=True)
class FamilyReport:
    """The results of a family.

    oracle, nothing: number of the `seeds` tasks in which the oracle, or doing nothing, earned 1.
    turns: of the oracle, per task.
    longest_observation: in characters.
    """

    family: str
    seeds: int
    oracle: int
    nothing: int
    turns: tuple[int, ...]
    longest_observation: int

    @property
    def sound(self) -> bool:
        return self.oracle == self.seeds and self.nothing == 0


def check_family(sandbox: Sandbox, family: str, seeds: Sequence[int]) -> FamilyReport:
    """Plays every task of `seeds` (of the train split) twice: the oracle, and doing nothing.

    Raises:
      SandboxError: an episode could not be judged, so there is no result.
    """
    tasks = [Task(family, seed, "train") for seed in seeds]
    solved = [play_oracle(sandbox, task) for task in tasks]
    messages = [m for _, transcript in solved for m in transcript.messages]
    observations = [m.content for m in messages if m.role == "tool"]
    return FamilyReport(
        family=family,
        seeds=len(tasks),
        oracle=sum(_is_solved(episode) for episode, _ in solved),
        nothing=sum(_is_solved(_play_nothing(sandbox, task)) for task in tasks),
        turns=tuple(episode.turns for episode, _ in solved),
        longest_observation=max(map(len, observations), default=0),
    )


def _is_solved(episode: Episode) -> bool:
    if not STATUS_RULES[episode.status].reward_valid:
        raise SandboxError(f"no verdict on {episode.key.task}: {episode.detail}")
    return episode.is_solved


def _play_nothing(sandbox: Sandbox, task: Task) -> Episode:
    policy = ScriptedPolicy([kind_of(task.family).nothing])
    key = EpisodeKey(phase="nothing", group=task.seed, member=0, task=task)
    return play(make_env(task, sandbox), policy, key, AgentLimits(turns=1))


def judge(sandbox: Sandbox, plays_oracle: bool) -> float:
    """Plays one task of each family that needs the image. Returns the oracle's lowest reward, or
    the highest reward for doing nothing."""
    tasks = [Task(family, 0, "train") for family in FAMILIES]
    if plays_oracle:
        return min(float(_is_solved(play_oracle(sandbox, task)[0])) for task in tasks)
    return max(float(_is_solved(_play_nothing(sandbox, task))) for task in tasks)


def verify_image(runtime: Runtime, spec: SandboxSpec) -> Verification:
    """Checks the image of `spec`, and stores the result in the image registry."""
    start = functools.partial(runtime.start, labels=LABELS)
    return Hub().validate(spec.image, start, runtime.name, judge, spec)


def table(reports: list[FamilyReport]) -> str:
    rows = ["family           oracle   nothing  turns min/median/max  longest observation"]
    for r in reports:
        low, middle, high = min(r.turns), statistics.median(r.turns), max(r.turns)
        rows.append(
            f"{r.family:<15}{r.oracle:>4}/{r.seeds:<5}{r.nothing:>4}/{r.seeds:<5}"
            f"{low:>7} / {middle:g} / {high:<8}{r.longest_observation:>9} characters"
        )
    return "\n".join(rows)


def main(argv: list[str] | None = None) -> int:
    """Returns the exit code: 1 if a family is unsound, or there is no result."""
    parser = argparse.ArgumentParser(
        prog="python -m ale_jax.envs.shell.validate", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=200, help="worlds per family")
    parser.add_argument("--runtime", default="auto", help="auto, docker or bubblewrap")
    args = parser.parse_args(argv)
    if args.seeds < 1:
        parser.error(f"--seeds {args.seeds} must be at least 1")
    spec = SandboxSpec()
    try:
        runtime = pick_runtime(args.runtime, spec)
    except (ValueError, SandboxStartError) as error:
        parser.error(str(error))
    try:
        with runtime.start(spec, LABELS) as sandbox:
            seeds = range(args.seeds)
            reports = [check_family(sandbox, family, seeds) for family in all_families()]
        verified = verify_image(runtime, spec) if runtime.name == "docker" else None
    except SandboxError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(table(reports))
    if verified:
        print(f"image {spec.image}: {verified.detail}")
    sound = all(report.sound for report in reports)
    return 0 if sound and (verified is None or verified.ok) else 1


if __name__ == "__main__":
    sys.exit(main())
