"""A config becomes a run's dataclasses, or is refused by field, value and remedy."""

import copy
import json
import re

import pytest

from ale_jax.config.build import build_config, field_names, with_record_defaults
from ale_jax.config.fields import flat
from ale_jax.config.rollout import RolloutConfig
from ale_jax.config.run import RunConfig
from tests.config.smoke import SMOKE, smoke_with
from tests.rows import each_row


def test_every_field_is_reached_by_its_dotted_name():
    assert set(flat(SMOKE)) < set(field_names(RunConfig))
    assert "rl_optimizer.b1" in flat(SMOKE) and "rl" in set(field_names(RunConfig))


def test_the_weights_of_a_domain_are_named_and_kept_in_one_order():
    train = ({"world": "shell", "families": ("trail",), "weights": {"style": 0.5, "exact": 1.0}},)
    (domain,) = build_config(smoke_with({"worlds.train": train})).worlds.train
    assert domain.weights == (("exact", 1.0), ("style", 0.5))


@each_row(
    "name, value, answer",
    [
        ("rl.alhpa", 1.0, "config.rl.alhpa is unknown: did you mean config.rl.alpha?"),
        ("rl_optimizer.lr", 1.0, "did you mean config.rl_optimizer.learning_rate?"),
        ("algo.loss.lr", 1.0, "choose one of algo.loss.kind, algo.loss.level"),
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
        ("algo.loss.kind", "pg", "config.algo.loss: kind 'pg' is unknown: choose one of none"),
        ("algo.gamma", 0.0, "config.algo: gamma 0.0 must be in (0, 1]"),
        ("algo.loss.tau", 0.1, "config.algo.loss: tau 0.1 is not read by the loss topr"),
        ("rl.group_size", 0, "group_size 0 must be at least 1"),
        ("rl.router_replay", 1, "config.rl.router_replay is 1 (int): expected bool"),
        ("rollout.runtime", "podman", "docker, bubblewrap, kubernetes, or http://HOST:PORT of a"),
        (
            "rollout.runtime",
            "http://localhost:80/v1",
            "80/v1' must be http://HOST:PORT or https://HOST:PORT",
        ),
        ("rollout.runtime", "https://:80", "runtime 'https://:80' must be http://HOST:PORT"),
        (
            "engine.weights",
            "int4",
            "weights 'int4' is unknown: choose one of same, int8, fp8",
        ),
        ("rl_optimizer.decay_ratio", -1.0, "decay_ratio -1.0 must be in [0.0, 1.0]: it is a share"),
        ("resampling.scheme", "back", "choose one of none, rollback, parallel"),
        ("worlds.tasks_per_family", -1, "tasks_per_family -1 must be at least 0"),
        ("agent.malformed_limit", -1, "malformed_limit -1 must be at least 0: 0 is off"),
        (
            "agent.replay_share",
            1.5,
            "replay_share 1.5 must be in [0.0, 1.0]: 0 is off, 1 replays all",
        ),
        ("learn.compute_dtype", "float16", "compute_dtype 'float16' is unknown: choose one of flo"),
        ("learn.remat", "all", "remat 'all' is unknown: choose one of none, dots, layers"),
        ("hardware.chip", "v6e", "chip 'v6e' and devices 0: set both, or none"),
        ("hardware.chip", "a1", "chip 'a1' is unknown: choose one of v5e, v5p"),
        ("lora.rank", 4, "config.lora.alpha 0.0 must be > 0"),
        ("rl_optimizer.name", "sgd", "'sgd' is unknown: choose one of adamw, adafactor, muon"),
        ("worlds.train", ({"world": "shell", "families": ("a", "a")},), "names one twice"),
        ("worlds.train", ({"families": ("a",)},), "config.worlds.train[0]: a domain names no"),
        ("worlds.train", ({"world": "shell", "familys": ()},), "train[0].familys is unknown: did"),
        ("worlds.train", ({"world": "shell", "ratio": 0},), "domain ratio 0 must be at least 1"),
        ("worlds.train", ({"world": "shell", "solved_at": -1.0},), "solved_at -1.0 must be at"),
        ("worlds.train", ("shell",), "worlds.train[0] is 'shell': expected a section with world"),
        ("eval.tasks", 0, "tasks 0 must be at least 1"),
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


@each_row("url", ["http://127.0.0.1:8700", "https://localhost/", "http://[::1]:80"])
def test_the_sandboxes_may_be_those_of_a_service(url):
    assert RolloutConfig(runtime=url).runtime == url


def test_a_token_in_a_url_is_refused_and_not_repeated():
    login = "me:secret"
    with pytest.raises(ValueError, match="put the token into the variable ALE_SANDBOX_TOKEN") as no:
        RolloutConfig(runtime=f"http://{login}@localhost:8700")
    assert "secret" not in str(no.value)


def test_the_records_of_an_older_config_have_the_defaults_of_newer_fields():
    whole = json.loads(json.dumps(build_config(SMOKE).to_json()))
    older = copy.deepcopy(whole)
    for domain in (*older["worlds"]["train"], *older["worlds"]["held_out"]):
        del domain["weights"], domain["turns"]
    assert older != whole == with_record_defaults(older)
    broken = {"worlds": {"train": 3, "held_out": ["x"]}, "unknown": [{}]}
    assert with_record_defaults(broken) == broken
