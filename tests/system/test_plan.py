"""The plan of a device's memory: what it counts is what lies there."""

import dataclasses
import importlib
import math

import jax
import numpy as np
import pytest

from ale_jax.config.critics import SIZES
from ale_jax.config.hardware import MeshShape
from ale_jax.config.model import LoraShape
from ale_jax.data.packing import Sample, pack, text_turn
from ale_jax.learn.critics import Critics
from ale_jax.learn.state import init_state, make_optimizer
from ale_jax.learn.step import ModelSpec
from ale_jax.model.cache import copy_out
from ale_jax.model.guides import num_words
from ale_jax.model.memory import cache_shardings, empty_cache
from ale_jax.model.params import param_table
from ale_jax.model.sampling_weights import sampling_weights
from ale_jax.model.sharding import abstract_mesh, make_mesh, mesh_sizes, num_data_shards
from ale_jax.model.weights.shape import policy_shape
from ale_jax.system.checks import checked_config
from ale_jax.system.engine_memory import next_version, sent_weights
from ale_jax.system.needs import Need
from ale_jax.system.plan import Plan, Side, make_plan
from ale_jax.system.serving_plan import only_sampling, plan_serving
from benchmarks.lowering import traced_sampler
from tests.model.meshes import mesh_of

SMOKE = importlib.import_module("ale_jax.configs.smoke").get_config


def _config(**changes):
    config = SMOKE()
    for section, fields in changes.items():
        config[section].update(fields)
    return checked_config(config.to_dict())


def _needs(config):
    return {need.what: need.bytes for need in make_plan(config).needs}


@pytest.mark.parametrize("has, rows", [(4 << 30, ["4.000"]), (0, [])])
def test_the_table_says_what_is_available_where_that_is_known(has, rows):
    side = Side("", 2, {"data": 2}, (Need("weights", 1 << 30),))
    table = str(Plan("h100", (side,), has)).splitlines()
    assert table[0] == "2 x h100 (data 2), GiB of each:"
    assert [line.split()[-1] for line in table if line.split()[0] == "available"] == rows
    assert [line.split()[-1] for line in table if line.split()[0] == "total"] == ["1.000"]


@pytest.mark.heavy
@pytest.mark.parametrize("mesh", [MeshShape(data=8), MeshShape(data=1, fsdp=2, expert=2, tensor=2)])
def test_state_takes_what_is_planned(mesh):
    config = _config(
        mesh=vars(mesh), model={"num_kv_heads": 2}, hardware={"chip": "h100", "devices": 8}
    )
    needs, policy = _needs(config), policy_shape(config, config.tokenizer.vocab_size)
    optimizer = make_optimizer(config.rl_optimizer, policy)
    state = init_state(jax.random.key(0), policy, optimizer, make_mesh(mesh))

    def on_one_device(tree):
        return sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(tree))

    assert needs["weights, float32"] == on_one_device(state.params)
    assert needs["moments of the optimizer"] == on_one_device(state.opt_state)
    cache = empty_cache(policy, config.engine.pages, config.engine.page_tokens)
    whole = sum(x.nbytes for x in jax.tree.leaves(cache))
    assert needs["keys and values of the sampler"] == whole // 8  # 4 shares x 2 kv heads, or 8
    devices = make_mesh(mesh)
    with jax.set_mesh(devices):
        cache = jax.device_put(cache, cache_shardings(policy, devices))
        shards = num_data_shards(devices)
        page_BW = np.zeros((shards, config.engine.shard(shards).swapped_pages), np.int32)
        moved = on_one_device(copy_out(cache, page_BW))
    assert needs["pages on their way to the host or back"] == 2 * moved
    served = sampling_weights(state.params, policy, config.learn, make_mesh(mesh))
    own = 0 if served is state.params else on_one_device(served)
    assert needs.get("weights of the sampler, float32", 0) == own
    assert (own > 0) == (mesh.fsdp > 1)


def test_each_engine_has_its_own_cache_and_weights():
    """Of two processes with four devices each; and with an engine on each pair of devices."""
    model, mesh = {"num_kv_heads": 2}, {"data": 4, "tensor": 2}
    cache, weights = "keys and values of the sampler", "weights of the sampler, float32"
    needs = {}
    for count, devices_per_engine in ((0, 0), (4, 0), (4, 2)):
        hardware = {"chip": "h100", "devices": 8, "devices_per_process": count}
        rollout = {"devices_per_engine": devices_per_engine}
        config = _config(mesh=mesh, model=model, hardware=hardware, rollout=rollout)
        needs[count, devices_per_engine] = _needs(config)
    alone, of_four, of_two = needs.values()
    assert 4 * alone[cache] == 2 * of_four[cache] == of_two[cache] > 0
    assert weights not in alone, "it uses the learner's own"
    assert of_four[weights] == of_two[weights] == of_four["weights, float32"]


def test_each_side_of_a_divided_run_is_counted():
    """Of two processes with eight devices each, of which two sample."""
    sections = {
        "mesh": {"data": 2, "fsdp": 6},
        "model": {"width": 48},
        "engine": {"max_sequences": 12, "pages": 96, "max_sequence_length": 256},
        "learn": {"microbatch_rows": 12},
    }
    chips = {"chip": "h100", "devices": 16, "devices_per_process": 8}
    divided = make_plan(_config(**sections, hardware=chips, rollout={"engine_devices": 2}))
    chips |= {"devices": 12, "devices_per_process": 6}
    shared = make_plan(_config(**sections, hardware=chips))
    learner, engines = divided.sides
    assert [line for line in str(divided).splitlines() if "GiB of each" in line] == [
        "12 x h100 for the learner (data 2, fsdp 6), GiB of each:",
        "4 x h100 for engines (data 2), GiB of each:",
    ]
    learning, sampling = ({n.what: n.bytes for n in side.needs} for side in divided.sides)
    together = {need.what: need.bytes for need in shared.needs}
    assert learning.items() <= together.items(), "the mesh of the learner is the same"
    weights, cache = "weights of the sampler, float32", "keys and values of the sampler"
    assert sampling[weights] == sampling["weights of the sampler, next version"] > 0
    assert sampling[weights] == together[weights] and sampling[cache] == 3 * together[cache]
    assert not learning.keys() & sampling.keys()
    assert max(learner.total, engines.total) == divided.total < shared.total


@pytest.mark.parametrize(
    ("mesh", "dtype", "copies"),
    [
        ({"data": 4}, "float32", 0),
        ({"data": 2, "fsdp": 2}, "float32", 1),
        ({"data": 2, "context": 2}, "float32", 1),
        ({"data": 2, "tensor": 2}, "bfloat16", 1),
    ],
)
def test_weights_on_their_way_to_engines_are_counted(mesh, dtype, copies):
    """Of a learner that has them in other parts, or in another type."""
    sections = {"mesh": mesh, "learn": {"compute_dtype": dtype}, "model": {"num_kv_heads": 2}}
    sections["rollout"] = {"engine_devices": 4}
    config = _config(**sections, hardware={"chip": "h100", "devices": 8})
    of_run = policy_shape(config, 320), abstract_mesh(mesh_sizes(config.mesh, 4))
    (sent,), (received,) = sent_weights(config, *of_run), next_version(config, *of_run)
    assert sent.bytes == copies * received.bytes and received.bytes


def test_devices_that_are_lent_hold_the_state_instead_of_the_cache():
    sections = {
        "hardware": {"chip": "h100", "devices": 8},
        "model": {"width": 2048, "mlp_width": 8192, "num_experts": 0, "dense_layers": ()},
        "learn": {"microbatch_rows": 4, "remat": "layers"},
    }
    apart = {"engine_devices": 6, "devices_per_engine": 2}
    plain, lent = (
        make_plan(_config(**sections, rollout=apart | {"lent_engines": count})).sides
        for count in (0, 1)
    )
    name, cache = "weights and moments, over lent devices, too", "keys and values of the sampler"
    learner, engines = ({n.what: n.bytes for n in side.needs} for side in lent)
    state = learner["weights, float32"] + learner["moments of the optimizer"]
    assert learner[name] == engines[name] == state
    assert cache not in engines and "gradients, float32: the sum and one more" in engines
    assert engines["weights of the sampler, while it is lent"] == learner["weights, float32"]
    assert all(new.total > old.total for new, old in zip(lent, plain, strict=True))


def test_a_server_samples_on_the_learners_devices_too():
    chips, rollout = {"chip": "h100", "devices": 8}, {"engine_devices": 2}
    config = _config(hardware=chips, mesh={"data": 6}, rollout=rollout)
    policy = policy_shape(config, config.tokenizer.vocab_size)
    (side,) = plan_serving(config, policy, []).sides
    assert (side.devices, side.mesh["data"]) == (8, 8)
    assert only_sampling(config).rollout.devices_per_engine == 2, "engines are as large"
    shared = _config(hardware=chips)
    assert only_sampling(shared) == shared


@pytest.mark.parametrize(
    ("rollout", "message"),
    [
        ({"engine_devices": 8}, "engine_devices 8 leaves none of a process's 8 devices"),
        ({"engine_devices": 4, "devices_per_engine": 3}, "devices_per_engine 3 .* the 4 devices"),
    ],
)
def test_devices_that_cannot_be_divided_are_refused(rollout, message):
    with pytest.raises(ValueError, match=message):
        make_plan(_config(hardware={"chip": "h100", "devices": 8}, rollout=rollout))


def test_devices_along_context_share_the_conversations():
    hardware, mesh = {"chip": "h100", "devices": 8}, {"data": 4, "context": 2}
    name, weights = "keys and values of the sampler", "weights of the sampler, float32"
    along, alone = (
        _needs(_config(mesh=each, hardware=hardware)) for each in (mesh, {"data": 8, "context": 1})
    )
    assert along[name] == alone[name]
    assert along[weights] == along["weights, float32"], "they are the engine's own"
    with pytest.raises(ValueError, match=r"max_sequences 4 must be .* 8: set it to 8"):
        _needs(_config(mesh=mesh, hardware=hardware, engine={"max_sequences": 4}))


def test_a_host_over_which_experts_cannot_be_divided_is_refused():
    hardware = {"chip": "h100", "devices": 8, "devices_per_process": 2}
    with pytest.raises(ValueError, match="does not divide the 2 devices of an engine"):
        make_plan(_config(mesh={"data": 2, "expert": 4}, hardware=hardware))
    with pytest.raises(ValueError, match="devices_per_engine 3 does not divide the 2 devices"):
        make_plan(_config(hardware=hardware, rollout={"devices_per_engine": 3}))


def test_the_moment_when_most_is_held_may_be_the_publish():
    """With the learner's weights cut in many, and the sampler's whole, as with no activations."""
    mesh = {"data": 1, "fsdp": 8}
    config = _config(
        mesh=mesh,
        hardware={"chip": "h100", "devices": 8},
        model={
            "width": 4096,
            "mlp_width": 16384,
            "num_experts": 0,
            "dense_layers": (),
            "num_layers": 6,
        },
    )
    needs = _needs(config)
    assert "gradients, float32: the sum and one more" not in needs
    sampler, before = needs["weights of the sampler, float32"], needs["weights before the step"]
    assert needs["weights of the sampler, next version"] == sampler
    assert needs["weights, float32"] == before
    assert 7 * before < sampler <= 8 * before  # norms are whole in both


def test_what_fsdp_divides_is_gathered_for_use():
    name = "weights gathered for use, and their gradient"
    alone = _config(mesh={"data": 2}, hardware={"chip": "h100", "devices": 2})
    assert name not in _needs(alone)
    divided = _config(mesh={"data": 1, "fsdp": 2}, hardware={"chip": "h100", "devices": 2})
    table = param_table(divided.model.policy_shape(divided.tokenizer.vocab_size))
    layer = max(sum(math.prod(p.shape) for p in each.values()) for each in table["layers"])
    embedding = math.prod(table["embed_VD"].shape)
    # In float32: embedding and head with their gradients, and a layer with its own.
    assert _needs(divided)[name] == 16 * embedding + 8 * layer


def test_what_saves_memory_is_seen_to_save_it():
    given = {"hardware": {"chip": "h100", "devices": 1}, "algo": {"old_logp": "generating"}}
    whole = make_plan(_config(**given)).total
    for changes in (
        {"learn": {"remat": "layers"}},
        {"learn": {"compute_dtype": "bfloat16"}},
        {"engine": {"int8_cache": True}},
        {"rl_optimizer": {"name": "adafactor"}},
    ):
        saving = _config(**given, **changes)
        assert make_plan(saving).total < whole, changes


def test_the_sampler_is_counted_as_it_is_stored():
    config = _config(
        hardware={"chip": "h100", "devices": 1},
        learn={"compute_dtype": "bfloat16"},
        engine={"weights": "int8"},
        algo={"old_logp": "generating"},
    )
    # Bytes: width 32, 2 heads of 16 and one of keys; a layer of 48, and one of 4 experts of 24.
    values = 2 * (1024 + 512 + 512 + 1024) + 3 * 32 * 48 + 3 * 4 * 32 * 24
    scales = 4 * (2 * (32 + 16 + 16 + 32) + (48 + 48 + 32) + 4 * (24 + 24 + 32))
    embedding = 2 * 320 * 32
    norms_and_router = 4 * (2 * (32 + 32 + 16 + 16) + 32 + 32 * 4)
    served = values + scales + embedding + norms_and_router
    assert _needs(config)["weights of the sampler, int8"] == served


@pytest.mark.parametrize(("alpha", "older"), [(0.0, 0), (0.5, 1), (1.0, 1), (2.0, 2)])
def test_the_policies_of_the_past_are_counted(alpha, older):
    """ceil(alpha) older versions, and a reference where the loss has one."""
    config = _config(
        hardware={"chip": "h100", "devices": 1},
        rl={"alpha": alpha},
        algo={"old_logp": "generating"},
    )
    needs = _needs(config)
    one = needs["weights, float32"]
    assert needs.get("weights of older versions, for pi_old", 0) == older * one
    assert "weights of the reference" not in needs
    loss = dataclasses.replace(config.algo.loss, kl_weight=0.1, kl_estimator="k3")
    for asked in (loss, dataclasses.replace(config.algo.loss, measure_kl=True)):
        algo = dataclasses.replace(config.algo, loss=asked)
        assert _needs(dataclasses.replace(config, algo=algo))["weights of the reference"] == one


def test_the_critics_are_counted():
    config = checked_config(SMOKE("asyppo").to_dict())
    policy, mesh = policy_shape(config, config.tokenizer.vocab_size), make_mesh(config.mesh)
    params = init_state(
        jax.random.key(0), policy, make_optimizer(config.rl_optimizer, policy), mesh
    )
    critics = Critics.make(
        config.critics, ModelSpec(policy, mesh), params.params, jax.random.key(0)
    )
    held = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(critics.state))
    assert _needs(config)["critics: weights and moments"] == held
    assert "critics: weights and moments" not in _needs(_config())


def test_a_critic_that_is_trained_whole_needs_more_than_adapters():
    gradient = "gradients, float32: the sum and one more"
    whole = checked_config(SMOKE("ppo").to_dict())
    adapters = dataclasses.replace(whole, lora=LoraShape(rank=4, alpha=8.0, targets=("q",)))
    sizes = dict.fromkeys(SIZES, 2) | {"num_layers": 1, "num_kv_heads": 1}
    critics = dataclasses.replace(adapters.critics, **sizes)
    small = dataclasses.replace(adapters, critics=critics)
    needs = [_needs(config)[gradient] for config in (whole, adapters, small)]
    assert needs[0] == needs[1] > needs[2]


def test_the_masks_of_an_agents_replies_are_counted():
    config = _config(
        external_agent={"command": ("agent",)}, hardware={"chip": "h100", "devices": 8}
    )
    words = num_words(policy_shape(config, config.tokenizer.vocab_size).vocab_size)
    turn = dataclasses.replace(text_turn([1], [2]), mask_id=np.zeros(1, np.int16))
    sample = Sample((turn,), np.ones(1, np.float32), mask_Iw=np.full((1, words), -1, np.int32))
    batch, _ = pack([sample], config.learn)
    masks = "masks of replies that schemas restrict"
    assert _needs(config)[masks] == batch.mask_BIw.nbytes // 8
    assert masks not in _needs(_config())


def test_what_is_left_of_each_token_is_counted_where_it_is_cut():
    config = _config(train_sampling={"top_p": 0.8}, hardware={"chip": "h100", "devices": 8})
    words = num_words(policy_shape(config, config.tokenizer.vocab_size).vocab_size)
    turn = dataclasses.replace(text_turn([1], [2]), mask_id=np.zeros(1, np.int16))
    masks = {"mask_Iw": np.full((1, words), -1, np.int32), "sampling": config.train_sampling}
    batch, _ = pack([Sample((turn,), np.ones(1, np.float32), **masks)], config.learn)
    assert batch.mask_BIw.shape[1] == config.learn.pack_length
    assert _needs(config)["masks of what top_k, top_p and min_p left"] == batch.mask_BIw.nbytes // 8


def test_the_logits_of_drafts_are_counted_as_the_sampler_holds_them():
    """The compiled sampler of two devices has an array of as many numbers, and none without."""
    name, mesh = "logits of the sampler's drafts", mesh_of(data=2)
    found = {}
    for drafted in (0, 3):
        config = _config(
            engine={"speculative_tokens": drafted, "dispatch_ahead": False},
            mesh={"data": 2},
            hardware={"chip": "h100", "devices": 2},
        )
        policy = policy_shape(config, config.tokenizer.vocab_size)
        with jax.set_mesh(mesh):
            text = traced_sampler(policy, mesh, config.engine).lower().compile().as_text()
        slots = config.engine.max_sequences // 2
        held = f"f32[{slots},{1 + drafted},{policy.vocab_size}]"
        found[drafted] = _needs(config).get(name, 0), held in text
    assert found == {0: (0, False), 3: (4 * slots * 4 * policy.vocab_size, True)}


def test_a_mesh_that_does_not_divide_the_policy_is_refused_by_name():
    with pytest.raises(ValueError, match=r"mesh.tensor 8 cannot cut weight .* along its kv_heads"):
        make_plan(_config(hardware={"chip": "h100", "devices": 8}, mesh={"tensor": 8}))


def test_what_does_not_fit_is_refused_with_the_largest_part():
    model = {"width": 65536, "num_layers": 64, "dense_layers": (), "num_experts": 64}
    config = _config(model=model, hardware={"chip": "v5e", "devices": 1})
    with pytest.raises(ValueError, match=r"GiB of each v5e, which has 15\.5; the largest part"):
        make_plan(config).require_fit()
