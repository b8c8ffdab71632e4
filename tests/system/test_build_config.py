"""A config becomes a run's dataclasses, or is refused by field, value and remedy."""

import copy
import importlib
import re

import pytest

from ale_jax.config.run import RunConfig
from ale_jax.system.build_config import build_config, field_names
from ale_jax.system.checks import check_devices, sandboxed
from ale_jax.system.fields import flat
from tests.rows import each_row

SMOKE = importlib.import_module("ale_jax.configs.smoke").get_config().to_dict()


def smoke_with(changes):
    """The smoke config as a plain dict; changes by dotted names."""
    values = copy.deepcopy(SMOKE)
    for name, value in changes.items():
        *sections, leaf = name.split(".")
        holder = values
        for section in sections:
            holder = holder[section]
        holder[leaf] = value
    return values


@each_row(
    "name, fields, answer",
    [
        ("ppo", {"critics.count": 0}, "gae needs critics: set critics.count to 1"),
        ("turn_ppo", {"critics.count": 0}, "turn_gae needs critics: set critics.count to 1"),
        ("grpo", {"critics.count": 1}, "critics.count 1: the estimator outcome uses no critic"),
        ("asyppo", {"algo.loss.entropy_weight": 0.0}, "filters an entropy bonus that is off"),
        ("asyppo", {"rl.group_size": 3}, "cannot be divided evenly among 2 critics: set it to 4"),
        ("ppo", {"rl.dynamic_sampling": True}, "with algo.advantage.mean batch and std batch they"),
        ("ipa_balanced", {"rl.dynamic_sampling": True}, "with centring chunk, so they teach too"),
        ("step", {"rl.dynamic_sampling": True}, "algo.advantage.estimator step with centring"),
        ("gigpo", {"rl.dynamic_sampling": True}, "algo.advantage.estimator gigpo with centring"),
        ("echo", {"rl.dynamic_sampling": True}, "observations algo.loss.observation_weight"),
        ("dapo", {"resampling.scheme": "rollback"}, "hides from resampling.scheme rollback"),
        ("dapo", {"rl_optimizer.decay_success": 0.5}, "hides from rl_optimizer.decay_success 0.5"),
        ("grpo", {"rl.alpha": 1.5, "rl.max_uses": 4}, "fresh enough for 3 steps"),
        ("rloo", {"engine.int8_cache": True}, "differs from the learner's: set engine.weights to"),
        ("grpo", {"critics.optimizer.decay_success": 0.5}, "critics.optimizer.decay_success 0.5 w"),
        ("ppo", {"critics.mask_share": 0.2}, "mask_share 0.2 needs critics that can differ"),
        ("asyppo", {"critics.width": 0}, "all must be at least 1, or all 0"),
    ],
)
def test_sections_must_fit_the_algorithm(name, fields, answer):
    config = importlib.import_module("ale_jax.configs.smoke").get_config(name)
    config.update_from_flattened_dict(fields)
    with pytest.raises(ValueError, match=re.escape(answer)):
        build_config(config.to_dict())


@each_row(
    "name, fields",
    [
        ("step", {"rl.group_size": 1}),  # its chunks are compared, also those of one episode
        ("ipa", {"warm_start.max_steps": 0, "warm_start.probe_tasks": 1}),  # nothing is probed
        ("tree", {"rl.dynamic_sampling": True}),
        ("grpo", {"rl.alpha": 1.5, "rl.max_uses": 3}),
    ],
)
def test_what_is_not_read_is_not_refused(name, fields):
    config = importlib.import_module("ale_jax.configs.smoke").get_config(name)
    config.update_from_flattened_dict(fields)
    build_config(config.to_dict())


def test_every_field_is_reached_by_its_dotted_name():
    assert set(flat(SMOKE)) < set(field_names(RunConfig))
    assert "rl_optimizer.b1" in flat(SMOKE) and "rl" in set(field_names(RunConfig))


@each_row(
    "name, value, answer",
    [
        ("rl.alhpa", 1.0, "config.rl.alhpa is unknown: did you mean config.rl.alpha?"),
        ("rll", {"alpha": 1.0}, "config.rll is unknown: did you mean config.rl?"),
        ("rl.zzzzzzzz", 1, "choose one of rl.steps, rl.groups_per_step"),
        ("rl.steps", "ten", "config.rl.steps is 'ten' (str): expected int"),
        ("rl.steps", True, "config.rl.steps is True (bool): expected int"),
        ("rl.alpha", 1, "config.rl.alpha is 1 (int): expected float"),
        ("rl.alpha", float("nan"), "config.rl.alpha is nan: expected a finite number"),
        ("rl", 3, "config.rl is 3: expected a section with steps"),
        (
            "engine.prefill_tokens",
            [32],
            "config.engine.prefill_tokens is [32] (list): expected tuple",
        ),
        (
            "engine.prefill_tokens",
            (32, "x"),
            "config.engine.prefill_tokens[1] is 'x' (str): expected int",
        ),
        ("engine.prefill_tokens", (), "prefill_tokens () must be numbers in ascending order"),
        ("train_sampling.temperature", -1.0, "config.train_sampling: temperature -1.0"),
        ("rl.alpha", -0.5, "config.rl: alpha -0.5"),
        ("algo.loss.kind", "pg", "config.algo.loss: kind 'pg' is unknown: choose one of vanilla"),
        ("algo.gamma", 0.0, "config.algo: gamma 0.0 must be in (0, 1]"),
        ("algo.loss.tau", 0.1, "config.algo.loss: tau 0.1 is not read by the loss topr"),
        ("rl.group_size", 0, "group_size 0 must be at least 1"),
        ("rl.group_size", 1, "rl.group_size 1 leaves algo.advantage.mean"),
        ("rl.router_replay", 1, "config.rl.router_replay is 1 (int): expected bool"),
        ("rollout.runtime", "podman", "choose one of auto, docker, bubblewrap"),
        (
            "engine.weights",
            "int4",
            "weights 'int4' is unknown: choose one of same, int8, fp8",
        ),
        ("engine.weights", "fp8", "set algo.old_logp to generating, or engine.weights to same"),
        ("engine.int8_cache", True, "engine.weights to same and engine.int8_cache to False"),
        ("train_sampling.temperature", 0.0, "makes all members of a group identical"),
        ("rl_optimizer.decay_steps", -1, "decay_steps -1 must be at least 0: 0 is off"),
        ("engine.max_sequences", 3, "set engine.max_sequences to 4 or more"),
        ("engine.max_sequence_length", 641, "must be at most learn.pack_length 640"),
        ("rollout.max_reply_tokens", 384, "must be less than engine.max_sequence_length 384"),
        ("resampling.scheme", "rollback", "set it to 1 or more"),
        ("resampling.scheme", "back", "choose one of none, rollback, parallel"),
        ("worlds.tasks_per_family", -1, "tasks_per_family -1 must be at least 0"),
        ("agent.malformed_limit", -1, "malformed_limit -1 must be at least 0: 0 is off"),
        (
            "agent.replay_share",
            1.5,
            "replay_share 1.5 must be in [0.0, 1.0]: 0 is off, 1 replays all",
        ),
        ("learn.chunks_per_pack", 1, "must be at least agent.turns 2"),
        ("learn.compute_dtype", "float16", "compute_dtype 'float16' is unknown: choose one of flo"),
        ("learn.remat", "all", "remat 'all' is unknown: choose one of none, dots, layers"),
        ("hardware.chip", "v6e", "chip 'v6e' and devices 0: set both, or none"),
        ("hardware.chip", "a1", "chip 'a1' is unknown: choose one of v5e, v5p"),
        ("lora.rank", 4, "lora.alpha 0.0 must be > 0"),
        ("lora.targets", ("qkv",), "targets 'qkv' is unknown: choose some of q, k, v"),
        ("rl_optimizer.name", "sgd", "'sgd' is unknown: choose one of adamw, adafactor, muon"),
        ("worlds.train_families", (), "train_families is empty"),
        ("worlds.train_families", ("nope",), "family 'nope' is unknown: choose one of trail"),
        ("worlds.train_families", ("corridor-depth99-all",), "depth 99 must be from 8 to 48"),
        ("worlds.train_families", ("trail", "relay"), "relay cannot be trained on and held out"),
        ("worlds.train_families", ("trail", "trail"), "names one twice"),
        ("worlds.held_out_families", (), "eval.held_out_tasks 1 needs"),
        ("eval.tasks", 1, "eval.tasks 1 must be at least 2: one per family"),
        ("eval.tasks", 0, "tasks 0 must be at least 1"),
        (
            "model.max_positions",
            256,
            "max_sequence_length 384 must be at most model.max_positions 256",
        ),
        ("model.num_kv_heads", 3, "must be a multiple of model.num_kv_heads 3"),
        ("model.width", 0, "width 0 must be at least 1"),
        ("mesh.fsdp", 0, "fsdp 0 must be at least 1"),
        ("tokenizer.vocab_size", 100, "vocab_size 100 must be at least 265"),
        ("checkpoint.keep", 0, "keep 0 must be at least 1"),
        ("warm_start.max_steps", -1, "max_steps -1 must be at least 0"),
        ("seed", -1, "seed -1 must be at least 0"),
    ],
)
def test_a_mistake_is_answered_with_its_name_and_the_remedy(name, value, answer):
    with pytest.raises(ValueError, match=re.escape(answer)) as refusal:
        build_config(smoke_with({name: value}))
    assert "\n" not in str(refusal.value)


def test_a_missing_field_is_named():
    values = copy.deepcopy(SMOKE)
    del values["algo"]["gamma"]
    with pytest.raises(ValueError, match=r"config\.algo\.gamma is missing"):
        build_config(values)


def test_a_quantised_sampler_is_fine_where_the_learner_says_what_it_would_have_done():
    build_config(smoke_with({"engine.weights": "int8", "algo.old_logp": "generating"}))


def test_an_agents_program_needs_sandboxes_and_no_replays():
    agent = {"external_agent.command": ("my-agent",)}
    build_config(smoke_with(agent))
    for family in ("countdown3", "corridor-late3"):
        elsewhere = {"worlds.train_families": (family,)}
        with pytest.raises(ValueError, match=f"tasks of {family} are not in a sandbox"):
            build_config(smoke_with(agent | elsewhere))
    online = agent | {"sandbox.network.mode": "open"}
    build_config(smoke_with(online))
    with pytest.raises(ValueError, match=r"port 3128 is the network proxy's: choose another"):
        build_config(smoke_with(online | {"external_agent.port": 3128}))
    for field, value in (("agent.malformed_limit", 3), ("agent.replay_share", 0.5)):
        with pytest.raises(ValueError, match=f"{field} {value} needs our own loop"):
            build_config(smoke_with(agent | {field: value}))


def test_an_agent_demonstrates_only_what_it_can_play():
    demonstrates = {"external_agent.demonstrates": True}
    with pytest.raises(ValueError, match="demonstrates needs the agent's command"):
        build_config(smoke_with(demonstrates))
    demonstrates |= {"external_agent.command": ("my-agent",)}
    build_config(smoke_with(demonstrates))
    with pytest.raises(ValueError, match=r"noisy_share 0\.5 needs our own loop"):
        build_config(smoke_with(demonstrates | {"warm_start.noisy_share": 0.5}))
    elsewhere = ({"name": "numbers", "families": ("countdown3",), "ratio": 1},)
    build_config(smoke_with({"warm_start.domains": elsewhere}))
    with pytest.raises(ValueError, match="tasks of countdown3 are not in a sandbox"):
        build_config(smoke_with(demonstrates | {"warm_start.domains": elsewhere}))


def test_a_threshold_that_no_window_reaches_is_refused():
    rollback = {"resampling.scheme": "rollback", "worlds.tasks_per_family": 1}
    with pytest.raises(ValueError, match=r"window of 32, .* is 0\.893"):
        build_config(smoke_with(rollback | {"resampling.threshold": 0.9}))
    build_config(smoke_with(rollback | {"resampling.threshold": 0.89}))


def test_more_experts_than_a_checkpoint_can_hold_are_refused():
    rollback = {"resampling.scheme": "rollback", "worlds.tasks_per_family": 50_000}
    with pytest.raises(ValueError, match="lower it until there are at most 87381 tasks"):
        build_config(smoke_with(rollback))
    build_config(smoke_with(rollback | {"worlds.tasks_per_family": 40_000}))


def test_a_group_of_one_is_fine_where_nothing_is_compared():
    build_config(smoke_with({"rl.group_size": 1, "algo.advantage.mean": "batch"}))


def test_a_dense_policy_has_no_router_to_replay():
    build_config(smoke_with({"rl.router_replay": True}))
    for dense in ({"model.num_experts": 0}, {"model.dense_layers": (0, 1)}):
        with pytest.raises(ValueError, match=r"rl\.router_replay True needs a mixture"):
            build_config(smoke_with({"rl.router_replay": True} | dense))


def test_what_the_devices_cannot_hold_is_refused():
    # The tests run on 8 virtual devices.
    for changes, answer in (
        ({"learn.microbatch_rows": 7}, "set learn.microbatch_rows to 8"),
        (
            {"engine.max_sequences": 12},
            "engine.max_sequences 12 must be a multiple .*, 8: set it to 16",
        ),
        ({"mesh.fsdp": 3}, "mesh"),
        ({"mesh.expert": 8}, "cannot be cut into 8 along experts"),  # the smoke model has 4
    ):
        with pytest.raises(ValueError, match=answer):
            check_devices(build_config(smoke_with(changes)))


COUNTDOWN = {
    "worlds.train_families": ("countdown3",),
    "worlds.held_out_families": (),
    "eval.held_out_tasks": 0,
}
BOTH = {"name": "both", "families": ("countdown3", "trail"), "ratio": 1}


@each_row(
    "changes, is_sandboxed",
    [
        ({}, False),
        ({"worlds.train_families": ("countdown3", "trail")}, True),
        ({"worlds.held_out_families": ("relay",)}, True),
        ({"warm_start.domains": (BOTH,)}, True),
    ],
)
def test_a_sandbox_is_asked_for_where_any_world_needs_one(changes, is_sandboxed):
    config = build_config(smoke_with(COUNTDOWN | changes))
    assert sandboxed(config) == (config.sandbox if is_sandboxed else None)
