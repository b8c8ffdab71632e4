"""Does the learner train presets as their publications do? Each is compared with a reference that
is written out (reference.py), over three batches of several updates each.

    python -m benchmarks.protocols [--quick] [--out=FILE]

The batches are random trajectories with random rewards, whose recorded log-probabilities differ
from the policy's, so that ratios lie inside and outside the clip range. worst_difference: the
largest difference of a weight of policy or critic after any batch. move: the farthest that a weight
has moved in all. (Adam divides a gradient by its size, so a weight whose gradient is nearly 0 moves
by what is rounding, and has the largest difference.) clipped: the share of tokens that a bound of
the ratio held in the last batch. --quick: one protocol.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from ale_jax.config.hardware import MeshShape
from ale_jax.config.run import RunConfig
from ale_jax.data.replay import Group
from ale_jax.model.weights.shape import policy_shape
from ale_jax.records import Episode, EpisodeKey, Status, Task, Trajectory, Turn
from ale_jax.system.checks import checked_config
from ale_jax.system.step_metrics import add_updates
from ale_jax.system.trainer import Trainer
from benchmarks.protocols.reference import Played, Protocol, Reference

VOCABULARY, BATCHES = 64, 3
PROTOCOLS = {
    "GRPO, mu 4": Protocol("grpo", 4, 1),
    "PPO, 4 epochs of 4 minibatches": Protocol("ppo", 4, 4, dual_clip=3.0, critic=True),
    "DAPO, 16 updates": Protocol("dapo", 1, 16, groups=16, clip_high=0.28),
    "GSPO, 4 minibatches": Protocol("gspo", 1, 4, clip_low=3e-4, clip_high=4e-4, by_sequence=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    chosen = list(PROTOCOLS)[:1] if options.quick else list(PROTOCOLS)
    found = {name: measure(PROTOCOLS[name]) for name in chosen}
    print("| protocol | updates | clipped | largest move | largest difference |")
    print("| --- | --- | --- | --- | --- |")
    for name, row in found.items():
        figures = f"{row['clipped']:.0%} | {row['move']:.1e} | {row['difference']:.1e}"
        print(f"| {name} | {row['updates']} | {figures} |")
    worst = max(row["difference"] for row in found.values())
    result = json.dumps({"protocols": found, "worst_difference": worst})
    print(result)
    if options.out:
        options.out.write_text(result + "\n")


def measure(protocol: Protocol) -> dict[str, Any]:
    """Trains BATCHES batches in both ways."""
    config = run_config(protocol)
    shape = policy_shape(config, VOCABULARY)
    trainer = Trainer(config, shape, _one_device())
    trainer.begin()
    learner = trainer.make_learner()
    reference = Reference(protocol, shape, config.rl_optimizer, config.critics.lam)
    reference.begin(*_weights(trainer))
    begun, rng, worst, made = _weights(trainer), np.random.default_rng(0), 0.0, []
    for step in range(BATCHES):
        batch = _play(reference, protocol, rng)
        _, made, _ = learner.learn(_groups(batch, protocol), (), step)
        reference.learn(batch)
        expected = reference.policy, reference.critic
        worst = max(worst, _largest(_weights(trainer), expected))
    sums = add_updates(jax.device_get(made))
    return {
        "updates": BATCHES * len(made),
        "clipped": float(sums["clipped_tokens"] / sums["tokens"]),
        "move": _largest(expected, begun),
        "difference": worst,
    }


def run_config(protocol: Protocol) -> RunConfig:
    """The smoke run's config with a dense policy, and AdamW at a constant rate."""
    changes = importlib.import_module("ale_jax.configs.smoke").get_config(protocol.preset)
    changes.model.update(num_experts=0, experts_per_token=0, expert_width=0, dense_layers=())
    changes.rl.update(groups_per_step=protocol.groups, group_size=protocol.members)
    changes.learn.update(epochs=protocol.epochs, minibatches=protocol.minibatches)
    # A row for each trajectory: the reference has no packing, and a critic's share is of rows.
    changes.learn.update(microbatch_rows=1, pack_length=24)
    changes.engine.max_sequence_length = 24
    changes.algo.loss.negative_weight = 1.0
    adamw = {"name": "adamw", "learning_rate": 3e-5, "warmup_ratio": 0.0, "decay_ratio": 0.0}
    changes.rl_optimizer.update(adamw, decay_success=0.0, weight_decay=0.0)
    if protocol.critic:
        changes.critics.update(warmup_steps=0, lam=0.95)
        changes.critics.update(epochs=protocol.epochs, minibatches=protocol.minibatches)
        changes.critics.optimizer.update(adamw, weight_decay=0.0)
        for field in ("b1", "b2", "clip_norm"):
            changes.critics.optimizer[field] = changes.rl_optimizer[field]
    return checked_config(changes.to_dict())


def _play(reference: Reference, protocol: Protocol, rng: np.random.Generator) -> list[Played]:
    """Random trajectories of two turns, of 13 to 22 tokens; no two members of a group are equally
    long. Of each group some succeed and some fail."""
    batch = []
    for group in range(protocol.groups):
        solved = rng.permutation(protocol.members) < rng.integers(1, protocol.members)
        for member in range(protocol.members):
            ids_T = rng.integers(0, VOCABULARY, 13 + 3 * member)
            written_T = np.ones(len(ids_T), bool)
            written_T[:4] = written_T[8:10] = False
            old_T = np.asarray(reference.logp(reference.policy, ids_T))
            old_T = (old_T + rng.normal(0.0, 0.2, len(ids_T))).astype(np.float32)
            batch.append(Played(group, ids_T, written_T, old_T, float(solved[member])))
    return batch


def _groups(batch: Sequence[Played], protocol: Protocol) -> list[Group]:
    """The same trajectories as the learner gets them."""
    size = protocol.members
    return [
        Group(
            group, tuple(_trajectory(one, m) for m, one in enumerate(batch[first : first + size]))
        )
        for group, first in enumerate(range(0, len(batch), size))
    ]


def _trajectory(one: Played, member: int) -> Trajectory:
    turns = tuple(
        Turn(
            prompt_ids=one.ids_T[start:written].astype(np.int32),
            action_ids=one.ids_T[written:end].astype(np.int32),
            logp_mu=one.old_T[written:end],
            logp_old=one.old_T[written:end],
            version=np.zeros(end - written, np.int32),
            action_text="",
            prompt_text="",
            reward=one.reward if end == len(one.ids_T) else 0.0,
        )
        for start, written, end in ((0, 4, 8), (8, 10, len(one.ids_T)))
    )
    key = EpisodeKey("train", one.group, member, Task("random", one.group, "train"))
    episode = Episode(key, Status.FINISHED, one.reward, 2, 0, seconds=1.0, env_seconds=0.0)
    return Trajectory(episode, turns, start_version=0)


def _one_device() -> Mesh:
    axes = tuple(vars(MeshShape()))
    ones, kinds = (1,) * len(axes), (AxisType.Auto,) * len(axes)
    return jax.make_mesh(ones, axes, axis_types=kinds, devices=jax.devices()[:1])


def _weights(trainer: Trainer) -> tuple[Any, Any]:
    critic = trainer.critics.state[0].params if trainer.critics else None
    return jax.tree.map(np.asarray, jax.device_get((trainer.begun.params, critic)))


def _largest(first: Any, second: Any) -> float:
    """Returns the largest absolute difference of two trees of arrays."""
    pairs = zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True)
    return max(float(np.abs(x - y).max()) for x, y in pairs)


if __name__ == "__main__":
    main()
