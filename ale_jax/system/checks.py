"""Checks of a config before anything starts: between its sections, and against this machine."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import jax

from ale_jax.config.algo import FROM_CRITICS, AlgoConfig
from ale_jax.config.build import build_config, with_tuples
from ale_jax.config.fields import flat
from ale_jax.config.model import SAME
from ale_jax.config.resampling import NONE, ROLLBACK
from ale_jax.config.run import RunConfig
from ale_jax.config.unread import refuse_unread
from ale_jax.configs.algorithms import PRESETS
from ale_jax.data.staleness import StalenessGate
from ale_jax.files import read_json
from ale_jax.model.sharding import check_rows, param_shardings
from ale_jax.model.sides import learner_mesh
from ale_jax.model.weights.shape import policy_shape
from ale_jax.monitor.evaluations import wilson_interval
from ale_jax.monitor.run_files import CHECKPOINTS_DIR, CONFIG_FILE
from ale_jax.records import MAX_CUT_MASKS
from ale_jax.sandbox.booting import PROXY_PORT
from ale_jax.sandbox.egress.uplink import DIRECT
from ale_jax.system.plan import plan_here
from ale_jax.system.sources import check_sources, with_other_weights, with_sources
from ale_jax.system.task_checks import check_tasks, needs_sandbox
from ale_jax.system.teacher import check_distillation
from ale_jax.worlds.schedule import Schedule

# A token takes about 12 bytes of a checkpoint's JSON, with its id and text, and no reader accepts
# more than 512 MB.
MAX_EXPERT_TOKENS = 32 << 20


def checked_config(values: Mapping[str, Any]) -> RunConfig:
    """Returns the RunConfig of `values`, in which each section is a dict. ValueError if a field is
    unknown, missing, of the wrong type or out of range, or sections are inconsistent with each
    other."""
    return _checked(build_config(values))


def resolved_config(
    values: Mapping[str, Any], given: Collection[str] = (), run: Path | None = None
) -> RunConfig:
    """Returns the checked config of a command, in which `model` is what its weights hold, and names
    of models have the commit that they stand for.

    given: dotted names of fields that were set, be it to their defaults. run: the folder of a run,
    which has recorded both, and does not need its weights any more.
    ValueError as of `checked_config`, `with_sources` and `refuse_unread`.
    """
    config = _checked(with_sources(build_config(values), given, _recorded(run)))
    refuse_unread(config, given)
    return config


def _recorded(run: Path | None) -> RunConfig | None:
    """The config of a run that has checkpoints."""
    if run and (run / CONFIG_FILE).is_file() and any((run / CHECKPOINTS_DIR).glob("*")):
        with contextlib.suppress(ValueError):  # of another version, which is refused elsewhere
            return stored_config(run / CONFIG_FILE)
    return None


def config_with_weights(config: RunConfig, weights: str) -> RunConfig:
    """Returns the checked config with other weights, of whatever shape. Errors as
    `resolved_config`."""
    return _checked(with_other_weights(config, weights))


def _checked(config: RunConfig) -> RunConfig:
    try:
        check_sections(config)
    except ValueError as error:
        raise ValueError(f"config: {error}") from error
    return config


def stored_config(path: Path) -> RunConfig:
    """Reads the config of a run from its config.json at `path`. ValueError if the file is damaged,
    or was written by a version of this code whose config had other fields."""
    return checked_config(with_tuples(read_json(path)))


def check_sections(config: RunConfig) -> None:
    """Raises ValueError unless the sections are consistent. Uses no device, file or daemon."""
    _check_algorithm(config.algo)
    _check_engine(config)
    _check_batch(config)
    check_tasks(config)
    _check_resampling(config)
    for name, hp in (
        ("warm_start_optimizer", config.warm_start_optimizer),
        ("preferences_optimizer", config.preferences_optimizer),
        ("critics.optimizer", config.critics.optimizer),
    ):
        if hp.decay_success:
            raise ValueError(
                f"{name}.decay_success {hp.decay_success} waits for an event of reinforcement "
                "learning, which only rl_optimizer follows: set it to 0.0"
            )
    _check_external_agent(config)
    _check_recording(config)
    check_distillation(config)
    uplink = config.rollout.uplink
    if uplink != DIRECT and config.sandbox.network.mode == "none":
        raise ValueError(
            f"rollout.uplink {uplink} is for sandboxes with a network: set sandbox.network.mode"
        )
    if config.rl.steps:
        _check_train_sampling(config)
    slowest, turn = config.sandbox.command_seconds, config.deadlines.turn_seconds
    if needs_sandbox(config) and turn <= slowest:
        raise ValueError(
            f"deadlines.turn_seconds {turn:g} must be more than sandbox.command_seconds "
            f"{slowest:g}, or a slow command would cancel the episode"
        )
    if config.rl.router_replay and not config.model.is_moe:
        raise ValueError(
            "rl.router_replay True needs a mixture of experts, and no layer of model has experts: "
            "set it to False"
        )


def _check_train_sampling(config: RunConfig) -> None:
    """ValueError if the learner could not compute what the policy is sampled from."""
    sampling, length = config.train_sampling, config.learn.pack_length
    if sampling.is_greedy:
        raise ValueError(
            f"train_sampling.temperature {sampling.temperature} makes all members of a group "
            "identical, and leaves no distribution to learn from: set it above 0, 1.0 is usual"
        )
    if sampling.cuts and length > MAX_CUT_MASKS:
        raise ValueError(
            f"train_sampling.top_k {sampling.top_k}, top_p {sampling.top_p}, min_p "
            f"{sampling.min_p}: the learner needs what they left of each token of a row, for at "
            f"most {MAX_CUT_MASKS} tokens, and learn.pack_length is {length}: lower it, or sample "
            "from all tokens (0, 1.0, 0.0)"
        )


def check_devices(config: RunConfig) -> None:
    """Raises ValueError unless batches and weights can be sharded over the local devices, the
    initial weights and the tokenizer can be used, and the run fits into the devices' memory."""
    try:
        jax.local_devices(backend="cpu")
    except RuntimeError as error:
        raise ValueError(
            "JAX_PLATFORMS leaves out the CPU, on which credit is computed: add it, as in cuda,cpu"
        ) from error
    mesh = learner_mesh(config)
    check_rows(config.learn.microbatch_rows, mesh)
    # With a tokenizer of its own, the vocabulary size is not known before that is loaded.
    if config.weights or not config.tokenizer.path:
        param_shardings(policy_shape(config, config.tokenizer.vocab_size), mesh)
    check_sources(config)
    plan_here(config).require_fit()


def _check_engine(config: RunConfig) -> None:
    engine, rollout = config.engine, config.rollout
    episodes = rollout.actors * rollout.episodes_per_actor
    if engine.max_sequences < episodes:
        raise ValueError(
            f"engine.max_sequences {engine.max_sequences} cannot hold "
            f"rollout.actors {rollout.actors} x rollout.episodes_per_actor "
            f"{rollout.episodes_per_actor} conversations: "
            f"set engine.max_sequences to {episodes} or more"
        )
    if engine.max_sequence_length > config.model.max_positions:
        raise ValueError(
            f"engine.max_sequence_length {engine.max_sequence_length} must be at most "
            f"model.max_positions {config.model.max_positions}: "
            "the model was not made for longer conversations"
        )
    if engine.eight_bits and config.algo.old_logp == "sampler":
        # vanilla has no ratio that could correct for the difference.
        corrected = "algo.old_logp to generating, or " if config.algo.loss.kind != "vanilla" else ""
        raise ValueError(
            f"engine.weights {engine.weights}, int8_cache {engine.int8_cache}: the sampler's "
            f"policy differs from the learner's: set {corrected}"
            f"engine.weights to {SAME} and engine.int8_cache to False"
        )
    if rollout.max_reply_tokens >= engine.max_sequence_length:
        raise ValueError(
            f"rollout.max_reply_tokens {rollout.max_reply_tokens} must be less than "
            f"engine.max_sequence_length {engine.max_sequence_length}: the prompt needs room too"
        )


def _check_batch(config: RunConfig) -> None:
    learn, rl = config.learn, config.rl
    if config.engine.max_sequence_length > learn.pack_length:
        raise ValueError(
            f"engine.max_sequence_length {config.engine.max_sequence_length} must be at most "
            f"learn.pack_length {learn.pack_length}: a trajectory is trained on in one row"
        )
    if learn.chunks_per_pack < config.agent.turns:
        raise ValueError(
            f"learn.chunks_per_pack {learn.chunks_per_pack} must be at least agent.turns "
            f"{config.agent.turns}: each turn is a chunk"
        )
    for section, count in (("learn", learn.minibatches), ("critics", config.critics.minibatches)):
        if count > rl.groups_per_step:
            raise ValueError(
                f"{section}.minibatches {count} must be at most rl.groups_per_step "
                f"{rl.groups_per_step}: a minibatch has at least one group"
            )
    advantage = config.algo.advantage
    if rl.group_size == 1 and advantage.compares_a_group and advantage.units == "trajectories":
        raise ValueError(
            f"rl.group_size 1 leaves algo.advantage.mean {advantage.mean} and std "
            f"{advantage.std} nothing to compare within a group, so nothing is learned: set it to "
            "2 or more, or these to none, batch or tag"
        )
    most_uses = StalenessGate(rl.alpha, rl.groups_per_step).max_age + 1
    if rl.max_uses > most_uses:
        raise ValueError(
            f"rl.max_uses {rl.max_uses} cannot be reached: with rl.alpha {rl.alpha} a group is "
            f"fresh enough for {most_uses} steps. Lower it, or raise alpha"
        )
    if rl.dynamic_sampling:
        _check_dynamic_sampling(config)
    _check_critics(config)


def _check_dynamic_sampling(config: RunConfig) -> None:
    """ValueError if groups of equal outcomes, which are left out, would be missed."""
    advantage = config.algo.advantage
    if not advantage.compares_a_group:
        raise ValueError(
            f"rl.dynamic_sampling leaves out groups whose outcomes are equal, but with "
            f"algo.advantage.mean {advantage.mean} and std {advantage.std} they teach too: set it "
            "to False, or one of these to group"
        )
    if not advantage.compares_only_outcomes:
        raise ValueError(
            f"rl.dynamic_sampling leaves out groups whose outcomes are equal, but their chunks "
            f"differ in algo.advantage.estimator {advantage.estimator} with centring "
            f"{advantage.centring}, so they teach too: set it to False"
        )
    if config.algo.loss.observation_weight:
        raise ValueError(
            f"rl.dynamic_sampling leaves out groups in which every attempt fails, whose "
            f"observations algo.loss.observation_weight {config.algo.loss.observation_weight} is "
            "to learn from: set it to False, or the weight to 0.0"
        )
    if config.resampling.scheme != NONE:
        raise ValueError(
            f"rl.dynamic_sampling hides from resampling.scheme {config.resampling.scheme} the "
            "groups that have mastered a start or need an expert: set one of them to False or none"
        )
    if config.rl_optimizer.decay_success:
        raise ValueError(
            f"rl.dynamic_sampling hides from rl_optimizer.decay_success "
            f"{config.rl_optimizer.decay_success} the groups in which every attempt succeeds, so "
            "that this share may never be measured: set one of them to False or 0.0"
        )


def _check_critics(config: RunConfig) -> None:
    critics, algo = config.critics, config.algo
    estimator, needed = algo.advantage.estimator, algo.advantage.from_critics
    if needed and not critics.count:
        raise ValueError(
            f"algo.advantage.estimator {estimator} needs critics: set critics.count to 1 (PPO) or "
            "2 (AsyPPO), or choose another estimator"
        )
    if critics.count and not needed:
        raise ValueError(
            f"critics.count {critics.count}: the estimator {estimator} uses no critic: set it to "
            f"0, or algo.advantage.estimator to one of {', '.join(FROM_CRITICS)}"
        )
    if critics.entropy_share and not algo.loss.entropy_weight:
        raise ValueError(
            f"critics.entropy_share {critics.entropy_share} filters an entropy bonus that is off: "
            "set algo.loss.entropy_weight above 0, or critics.entropy_share to 0.0"
        )
    critics.check_group(config.rl.group_size)
    if critics.count > 1 and config.rl.redundant_members:
        raise ValueError(
            f"rl.redundant_members {config.rl.redundant_members} leaves to chance which attempts "
            f"each of {critics.count} critics learns from: set it to 0, or critics.count to 1"
        )


def _check_algorithm(algo: AlgoConfig) -> None:
    """ValueError if the name is that of a preset, and the methods are those of another one."""
    fields = flat(dataclasses.asdict(algo))

    def differing(name: str) -> list[str]:
        preset = flat(PRESETS[name]())
        return [k for k, v in preset.items() if k != "name" and fields[k] != v]

    fitting = [name for name in PRESETS if not differing(name)]
    own = differing(algo.name) if algo.name in PRESETS else []
    if fitting and any(isinstance(fields[name], str) for name in own):
        raise ValueError(
            f"algo.name {algo.name} does not choose an algorithm, and the fields are those of "
            f"{fitting[0]}: choose it with the config, as in configs/quickstart.py:{algo.name}"
        )


def _check_recording(config: RunConfig) -> None:
    """What a step learns from must be in its episodes."""
    if not config.rl.record_steps:
        return
    if config.resampling.scheme != NONE:
        raise ValueError(
            f"rl.record_steps does not record what resampling.scheme {config.resampling.scheme!r} "
            "plays and imitates beside the groups: set one of them to False or 'none'"
        )
    if config.teacher.endpoint:
        raise ValueError(
            "rl.record_steps does not record what teacher.endpoint answers: name teacher.weights, "
            "or set it to False"
        )


def _check_external_agent(config: RunConfig) -> None:
    agent = config.external_agent
    if not agent.command:
        if agent.demonstrates:
            raise ValueError("external_agent.demonstrates needs the agent's command: set it, too")
        return
    if agent.port == PROXY_PORT and config.sandbox.network.mode != "none":
        raise ValueError(
            f"external_agent.port {PROXY_PORT} is the network proxy's: choose another, or "
            "sandbox.network 'none'"
        )
    played = [*config.worlds.train, *config.worlds.held_out]
    if agent.demonstrates:
        played += config.demonstrated
        free: tuple[tuple[str, float | bool], ...] = (("noisy_share", 0.0), ("mask_errors", False))
        for name, off in free:
            if (found := getattr(config.warm_start, name)) != off:
                raise ValueError(
                    f"warm_start.{name} {found} needs our own loop, which knows what failed: set "
                    f"it to {off}, or external_agent.demonstrates to False"
                )
    families = Schedule.of(config).families
    for name in families.of(*played):
        if not families[name].world.is_in_sandbox:
            raise ValueError(
                f"external_agent.command: tasks of {name} are not in a sandbox, where an agent "
                "could act on them: leave this family out"
            )
    if limited := [domain for domain in played if domain.turns]:
        raise ValueError(
            f"turns {limited[0].turns} of world {limited[0].world} needs our own loop: set it to "
            "0, or external_agent.command to ()"
        )
    for name, found, off in (
        ("resampling.scheme", config.resampling.scheme, NONE),
        ("agent.malformed_limit", config.agent.malformed_limit, 0),
        ("agent.replay_share", config.agent.replay_share, 0.0),
    ):
        if found != off:
            raise ValueError(
                f"{name} {found} needs our own loop, which replays what it did: set it to {off!r}, "
                "or external_agent.command to ()"
            )


def _check_resampling(config: RunConfig) -> None:
    worlds, scheme = config.worlds, config.resampling.scheme
    if scheme == NONE:
        return
    if not worlds.tasks_per_family:
        raise ValueError(
            f"resampling.scheme {scheme} needs tasks that are played repeatedly, and with "
            "worlds.tasks_per_family 0 no task is played twice: set it to 1 or more"
        )
    window, threshold = config.resampling.window, config.resampling.threshold
    best, _ = wilson_interval(window, window)
    if scheme == ROLLBACK and threshold > best:
        raise ValueError(
            f"resampling.threshold {threshold} cannot be reached: with {window} successes in a "
            f"window of {window}, the lower end of the interval is {best:.3f}: lower it, or raise "
            "window"
        )
    tasks = Schedule.of(config).train_count
    tokens = config.engine.max_sequence_length
    if tasks * tokens > MAX_EXPERT_TOKENS:
        raise ValueError(
            f"worlds.tasks_per_family {worlds.tasks_per_family} makes {tasks} training tasks, each "
            f"with an expert of up to {tokens} tokens in every checkpoint: lower it until there "
            f"are at most {MAX_EXPERT_TOKENS // tokens} tasks"
        )
