"""The sections of a config fit each other and the devices, or are refused with the remedy."""

import importlib
import re

import pytest

from ale_jax.system.checks import check_devices, checked_config, resolved_config
from ale_jax.system.rollouts.opening import worker_spec
from ale_jax.system.task_checks import needs_sandbox
from tests.config.smoke import smoke_with
from tests.played_worlds import COUNTDOWN, named, shell
from tests.rows import each_row


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
        ("grpo", {"rollout.reward_workers": 2}, "reward_workers 2 have nothing to judge: shell"),
        ("grpo", {"rl.alpha": 1.5, "rl.max_uses": 4}, "fresh enough for 3 steps"),
        ("asyppo", {"rl.redundant_members": 2}, "rl.redundant_members 2 leaves to chance which"),
        ("grpo", {"rl.redundant_groups": 2}, "rl.stragglers wait, by which steps wait for all"),
        (
            "grpo",
            {"rl.redundant_groups": 2, "rl.stragglers": "drop", "rl.fill_queue": True},
            "rl.redundant_groups 2 cannot be combined with rl.fill_queue",
        ),
        (
            "grpo",
            {"rl.redundant_groups": 2, "rl.stragglers": "drop", "rl.alpha": 1, "rl.max_uses": 2},
            "or rl.max_uses above 1: set them to False and 1",
        ),
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
        checked_config(config.to_dict())


@each_row(
    "name, fields",
    [
        ("step", {"rl.group_size": 1}),  # its chunks are compared, also those of one episode
        ("ipa", {"warm_start.max_steps": 0, "warm_start.probe_tasks": 1}),  # nothing is probed
        ("tree", {"rl.dynamic_sampling": True}),
        ("grpo", {"rl.alpha": 1.5, "rl.max_uses": 3}),
        ("grpo", {"rl.redundant_groups": 2, "rl.stragglers": "drop"}),
    ],
)
def test_what_is_not_read_is_not_refused(name, fields):
    config = importlib.import_module("ale_jax.configs.smoke").get_config(name)
    config.update_from_flattened_dict(fields)
    checked_config(config.to_dict())


@each_row(
    "name, value, answer",
    [
        ("rl.group_size", 1, "rl.group_size 1 leaves algo.advantage.mean"),
        ("engine.weights", "fp8", "set algo.old_logp to generating, or engine.weights to same"),
        ("engine.int8_cache", True, "engine.weights to same and engine.int8_cache to False"),
        ("train_sampling.temperature", 0.0, "makes all members of a group identical"),
        ("train_sampling.temperature", 1e-31, "leaves no distribution to learn from"),
        ("engine.max_sequences", 3, "set engine.max_sequences to 4 or more"),
        ("engine.max_sequence_length", 641, "must be at most learn.pack_length 640"),
        ("rollout.max_reply_tokens", 384, "must be less than engine.max_sequence_length 384"),
        ("resampling.scheme", "rollback", "set it to 1 or more"),
        ("learn.chunks_per_pack", 1, "must be at least agent.turns 2"),
        ("worlds.train", (), "worlds.train is empty: name worlds, as in"),
        (
            "worlds.train",
            ({"world": "chess"},),
            "world 'chess' is unknown: choose one of bfcl, corridor",
        ),
        ("worlds.train", ({"world": "no_such:World"},), "module 'no_such' cannot be imported"),
        ("worlds.train", ({"world": "json:loads"},), "has no class 'loads' that is a World"),
        ("worlds.train", shell("nope"), "'nope' is unknown to world shell: choose one of trail"),
        ("worlds.train", shell("trail") + shell("trail"), "names trail twice"),
        ("worlds.train", shell("trail", "relay"), "relay cannot be trained on and held out"),
        (
            "worlds.train",
            ({"world": "shell", "families": ("trail", "count"), "turns": 3},),
            "turns 3 of world shell must be at mo",
        ),
        (
            "worlds.train",
            ({"world": "shell", "families": ("trail",), "context": 385},),
            "context 385 of world shell must be at most engine.max_sequence_length 384",
        ),
        (
            "worlds.train",
            ({"world": "shell", "families": ("trail",), "reply_tokens": 9, "context": 9},),
            "reply_tokens 9 of world shell must be less than its context 9: lower it",
        ),
        ("worlds.train", named("corridor", "corridor-depth99-all"), "depth 99 must be from 8 to"),
        ("worlds.held_out", (), "eval.held_out_tasks 1 needs"),
        ("eval.tasks", 1, "eval.tasks 1 must be at least 2: one per family"),
        (
            "model.max_positions",
            256,
            "max_sequence_length 384 must be at most model.max_positions 256",
        ),
    ],
)
def test_a_mistake_is_answered_with_its_name_and_the_remedy(name, value, answer):
    with pytest.raises(ValueError, match=re.escape(answer)) as refusal:
        checked_config(smoke_with({name: value}))
    assert "\n" not in str(refusal.value)


def test_what_cuts_leave_is_numbered_for_rows_that_are_not_too_long():
    longest = {"learn.pack_length": 1 << 15, "train_sampling.top_k": 20}
    checked_config(smoke_with(longest))
    checked_config(smoke_with({"learn.pack_length": 1 << 16, "train_sampling.temperature": 0.7}))
    with pytest.raises(ValueError, match=r"top_k 20, top_p 1\.0, min_p 0\.0: the learner needs"):
        checked_config(smoke_with(longest | {"learn.pack_length": 1 << 16}))


def test_a_quantised_sampler_is_fine_where_the_learner_says_what_it_would_have_done():
    checked_config(smoke_with({"engine.weights": "int8", "algo.old_logp": "generating"}))


def test_an_uplink_and_data_sets_are_for_sandboxes_of_the_runs_own_machines():
    uplink = {"rollout.uplink.networks": ("10.0.5.7:3141",)}
    offer = {"sandbox.network.mode": "open", "rollout.datasets": ("wiki=/srv/wiki",)}
    online = checked_config(smoke_with(uplink | offer))
    assert worker_spec(online).datasets.entries == (("wiki", "/srv/wiki"),)
    assert worker_spec(online).uplink.networks == ("10.0.5.7:3141",)
    with pytest.raises(ValueError, match=r"rollout.uplink .*10.0.5.7:3141.* sandbox.network.mode"):
        checked_config(smoke_with(uplink))
    with pytest.raises(ValueError, match=": NAME=/PATH"):
        checked_config(smoke_with({"rollout.datasets": ("wiki",)}))
    with pytest.raises(ValueError, match=r"wiki=/srv/wiki.* the operator of"):
        service = {"rollout.runtime": "http://127.0.0.1:8700"}
        checked_config(smoke_with(service | {"rollout.datasets": ("wiki=/srv/wiki",)}))
    elsewhere = service | {"sandbox.network.mode": "open"}
    with pytest.raises(ValueError, match=r"10.0.5.7:3141.* the operator of .*127.0.0.1:8700"):
        checked_config(smoke_with(uplink | elsewhere))
    with pytest.raises(ValueError, match="within one of"):
        checked_config(smoke_with({"rollout.uplink.networks": ("8.8.8.8",)}))


def test_an_agents_program_needs_sandboxes_and_no_replays():
    agent = {"external_agent.command": ("my-agent",)}
    checked_config(smoke_with(agent))
    for world, family in (("countdown", "countdown3"), ("corridor", "corridor-late3")):
        elsewhere = {"worlds.train": named(world, family)}
        with pytest.raises(ValueError, match=f"tasks of {family} are not in a sandbox"):
            checked_config(smoke_with(agent | elsewhere))
    online = agent | {"sandbox.network.mode": "open"}
    checked_config(smoke_with(online))
    with pytest.raises(ValueError, match=r"port 3128 is the network proxy's: choose another"):
        checked_config(smoke_with(online | {"external_agent.port": 3128}))
    for field, value in (("agent.malformed_limit", 3), ("agent.replay_share", 0.5)):
        with pytest.raises(ValueError, match=f"{field} {value} needs our own loop"):
            checked_config(smoke_with(agent | {field: value}))


def test_an_agent_demonstrates_only_what_it_can_play():
    demonstrates = {"external_agent.demonstrates": True}
    with pytest.raises(ValueError, match="demonstrates needs the agent's command"):
        checked_config(smoke_with(demonstrates))
    demonstrates |= {"external_agent.command": ("my-agent",)}
    checked_config(smoke_with(demonstrates))
    with pytest.raises(ValueError, match=r"noisy_share 0\.5 needs our own loop"):
        checked_config(smoke_with(demonstrates | {"warm_start.noisy_share": 0.5}))
    elsewhere = named("countdown", "countdown3")
    checked_config(smoke_with({"warm_start.domains": elsewhere}))
    with pytest.raises(ValueError, match="tasks of countdown3 are not in a sandbox"):
        checked_config(smoke_with(demonstrates | {"warm_start.domains": elsewhere}))


def test_a_threshold_that_no_window_reaches_is_refused():
    rollback = {"resampling.scheme": "rollback", "worlds.tasks_per_family": 1}
    with pytest.raises(ValueError, match=r"window of 32, .* is 0\.893"):
        checked_config(smoke_with(rollback | {"resampling.threshold": 0.9}))
    checked_config(smoke_with(rollback | {"resampling.threshold": 0.89}))


def test_more_experts_than_a_checkpoint_can_hold_are_refused():
    rollback = {"resampling.scheme": "rollback", "worlds.tasks_per_family": 50_000}
    with pytest.raises(ValueError, match="lower it until there are at most 87381 tasks"):
        checked_config(smoke_with(rollback))
    checked_config(smoke_with(rollback | {"worlds.tasks_per_family": 40_000}))


def test_a_group_of_one_is_fine_where_nothing_is_compared():
    checked_config(smoke_with({"rl.group_size": 1, "algo.advantage.mean": "batch"}))


def test_a_dense_policy_has_no_router_to_replay():
    checked_config(smoke_with({"rl.router_replay": True}))
    for dense in ({"model.num_experts": 0}, {"model.dense_layers": (0, 1)}):
        with pytest.raises(ValueError, match=r"rl\.router_replay True needs a mixture"):
            checked_config(smoke_with({"rl.router_replay": True} | dense))


def test_what_the_devices_cannot_hold_is_refused():
    # The tests run on 8 virtual devices.
    for changes, answer in (
        ({"learn.microbatch_rows": 7}, "set learn.microbatch_rows to 8"),
        (
            {"engine.max_sequences": 12},
            "engine.max_sequences 12 must be a multiple .*, 8: set it to 16",
        ),
        ({"mesh.fsdp": 3}, "mesh"),
        ({"mesh.expert": 8}, "mesh.expert 8 cannot cut weight .* along its experts"),  # it has 4
    ):
        with pytest.raises(ValueError, match=answer):
            check_devices(checked_config(smoke_with(changes)))


ONLY_COUNTDOWN = {"worlds.train": COUNTDOWN, "worlds.held_out": (), "eval.held_out_tasks": 0}
BOTH = COUNTDOWN + shell("trail")


@each_row(
    "changes, is_sandboxed",
    [
        ({}, False),
        ({"worlds.train": BOTH}, True),
        ({"worlds.held_out": shell("relay")}, True),
        ({"warm_start.domains": BOTH}, True),
    ],
)
def test_a_sandbox_is_asked_for_where_any_world_needs_one(changes, is_sandboxed):
    config = checked_config(smoke_with(ONLY_COUNTDOWN | changes))
    assert needs_sandbox(config) == is_sandboxed


def test_a_command_sets_nothing_that_is_not_read():
    values = smoke_with({"lora.alpha": 8.0})
    assert not resolved_config(values).lora.rank  # a file may turn a section off by one field
    with pytest.raises(ValueError, match=r"lora\.alpha is not read without"):
        resolved_config(values, ["lora.alpha"])
