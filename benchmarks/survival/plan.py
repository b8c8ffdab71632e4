"""Numbers of repetitions, for the full benchmark and with --quick, and the config of its runs."""

from __future__ import annotations

import dataclasses

# Short deadlines, so that what waits for one ends soon.
DEADLINES = {
    "turn_seconds": 5.0,
    "episode_seconds": 20.0,
    "placement_seconds": 20.0,
    "watchdog_seconds": 10.0,
    "outage_seconds": 60.0,
}
GRACE_S = 9.0  # for the product; a run that is told to stop must be gone after STOP_S
STOP_S = 10.0
REACTION_S = 30.0  # so long after its deadline a fault must be healed or said
RUNTIME_AWAY_S = 30.0

ALGORITHM = "reinforce"
SMOKE = f"configs/smoke.py:{ALGORITHM}"
# A policy so small solves nothing. It only learns, step by step, if failures are punished without
# a baseline; without gradients, weights could not differ after a resume.
LEARNS = ("--config.algo.advantage.failure_reward=-1.0",)
NO_SANDBOXES = (
    "--config.worlds.train=({'world':'countdown','families':('countdown3',)},)",
    "--config.worlds.held_out=()",
    "--config.eval.held_out_tasks=0",
    "--config.eval.tasks=1",
)
ENDLESS = "--config.rl.steps=100000"
QUICK_FAULTS = ("worker_killed", "all_checkpoints_damaged")


@dataclasses.dataclass(frozen=True)
class Plan:
    """faults: names of those that are tried; empty: all. sigterms: at random moments, besides
    those in a garbage collection and in a compilation. sync_kills, async_kills: of one run after
    another. sync_steps: of a run that is compared. chaos_config, chaos_options: of the runs under
    chaos. calm_runs: the same without it. kill_every_s: between two kills. hung_share: of the
    sandboxes, which are stopped. seed: of all moments and choices.
    """

    faults: tuple[str, ...]
    sigterms: int
    sigterms_in_collections: int
    sigterms_in_compilations: int
    sync_kills: int
    sync_steps: int
    async_kills: int
    chaos_config: str
    chaos_options: tuple[str, ...]
    calm_runs: int
    kill_every_s: float
    hung_share: float
    seed: int = 0


FULL = Plan(
    faults=(),
    sigterms=40,
    sigterms_in_collections=5,
    sigterms_in_compilations=5,
    sync_kills=20,
    sync_steps=60,
    async_kills=100,
    # The quickstart with some more steps takes about twenty minutes on two cores.
    chaos_config="configs/quickstart.py",
    # A turn must be given longer than a command. A trainer that is killed every few minutes, but
    # saves every twenty steps, would spend half of its time on steps that it has made before.
    chaos_options=(
        "--config.rl.steps=240",
        "--config.rollout.runtime=bubblewrap",  # whose processes belong to the run
        "--config.sandbox.command_seconds=4.0",
        "--config.checkpoint.every=1",
    ),
    calm_runs=3,
    kill_every_s=20.0,
    hung_share=0.05,
)
QUICK = Plan(
    faults=QUICK_FAULTS,
    sigterms=1,
    sigterms_in_collections=1,
    sigterms_in_compilations=0,
    sync_kills=1,
    sync_steps=8,
    async_kills=2,
    chaos_config=SMOKE,
    chaos_options=(
        *LEARNS,
        "--config.rl.steps=12",
        "--config.rollout.runtime=bubblewrap",
        "--config.sandbox.command_seconds=4.0",
    ),
    calm_runs=1,
    kill_every_s=3.0,
    hung_share=0.5,
)
