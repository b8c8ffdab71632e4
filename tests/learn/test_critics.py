"""Critics value what stands before a token, learn from their own share, and mask a whole step."""

import copy
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ale_jax.config.algo import AdvantageHypers, AlgoConfig, MismatchHypers
from ale_jax.config.critics import SIZES, CriticsHypers
from ale_jax.config.loss import LossHypers
from ale_jax.config.model import FLOAT32, LoraShape
from ale_jax.learn import critics as critics_module
from ale_jax.learn.checkpoint import Checkpoints
from ale_jax.learn.critics import Critics, learn_values, value_batches
from ale_jax.learn.state import init_state, make_optimizer
from ale_jax.learn.step import ModelSpec
from ale_jax.learn.token_credit import credit_by_critics, returns
from ale_jax.model.lora import merged, new_adapters
from ale_jax.model.moe import balancing_loss, router_sums
from ale_jax.model.params import init_params, init_table
from ale_jax.model.policy import HEAD, hidden_states, token_values, value_table
from tests.learn.rewarded import rewarded_batches
from tests.learn.test_step import HYPERS, MUON
from tests.model.meshes import mesh_of
from tests.model.shapes import MOE, changed

MINI = CriticsHypers(
    count=2,
    width=16,
    num_layers=1,
    num_heads=2,
    num_kv_heads=1,
    head_width=8,
    mlp_width=24,
    lam=1.0,
    mask_share=0.0,
    entropy_share=0.0,
    warmup_steps=0,
    optimizer=HYPERS,
)
POLICY = changed(MOE, num_layers=1)
OWN_SHAPE = dict.fromkeys(SIZES, 0)
GAMMA = 0.9


def gae(estimator="gae", mean="none", std="none"):
    """An algorithm whose credit comes from critics."""
    advantage = AdvantageHypers(estimator, mean, std)
    return AlgoConfig("", GAMMA, "sampler", advantage, LossHypers("vanilla"), MismatchHypers())


TOKENS = gae()


def credited_by(critics, batches, algo=TOKENS, scale=list):
    return credit_by_critics(batches, critics.values(batches), critics.hp, algo, scale)


def learn(critics, batches, algo=TOKENS):
    return learn_values(batches, critics.hp, algo, critics.update)


@functools.cache
def _made(hp, mesh):
    params = init_params(jax.random.key(7), POLICY)
    model = ModelSpec(POLICY, mesh, balance_weight=1e-2)
    return Critics.make(hp, model, params, jax.random.key(0))


def _critics(hp=MINI, mesh=None):
    """New ones; those of one kind share what was compiled."""
    made = _made(hp, mesh or mesh_of())
    critics = copy.copy(made)
    critics.state = jax.tree.map(jnp.copy, made.state)  # for learning takes it over
    return critics


def _with_heads(critics, seed=0):
    """As if they had learned something."""
    draw = np.random.default_rng(seed)

    def head(state):
        weights = jnp.asarray(draw.normal(size=state.params[HEAD].shape), jnp.float32)
        return dataclasses.replace(state, params=state.params | {HEAD: weights})

    critics.state = tuple(map(head, critics.state))
    return critics


def _saying(critics, values):
    """`critics`, of values that a test knows."""
    critics.values = lambda batches: values
    return critics


def _written(arrays, batches):
    return np.concatenate([a[b.chunk_BT >= 0] for a, b in zip(arrays, batches, strict=True)])


def test_a_value_is_of_what_stands_before_the_token():
    critics, batch = _with_heads(_critics()), rewarded_batches()[0]
    value_QBT = np.stack(critics.values([batch])[0])
    shape = MINI.shape(POLICY)
    compiled = jax.jit(hidden_states, static_argnums=4)
    for value_BT, state in zip(value_QBT, critics.state, strict=True):
        rows = batch.tokens_BT, batch.position_BT, batch.segment_BT
        hidden_BTD = np.asarray(compiled(state.params, *rows, shape)[0])
        after_BT = hidden_BTD @ np.asarray(state.params[HEAD])
        written_BT = batch.chunk_BT >= 0
        expected_U = np.roll(after_BT, 1, axis=1)[written_BT]
        assert np.ptp(expected_U) > 1
        np.testing.assert_allclose(value_BT[written_BT], expected_U, atol=1e-4)
    assert np.abs(value_QBT[0] - value_QBT[1]).max() > 0.1


def test_all_critics_and_batches_share_one_program(monkeypatch):
    critics, batches = _with_heads(_critics()), rewarded_batches(groups=8)
    assert len(batches) > 1
    traced = []

    def counted(*args, **kwargs):
        traced.append(args)
        return token_values(*args, **kwargs)

    monkeypatch.setattr(critics_module, "token_values", counted)
    critics_module._values.clear_cache()
    critics.values(batches)
    critics.values(batches)
    assert len(traced) == 1


@pytest.mark.heavy
@pytest.mark.parametrize("optimizer", [HYPERS, MUON], ids=lambda hp: hp.name)
def test_the_error_falls(optimizer):
    critics = _critics(dataclasses.replace(MINI, optimizer=optimizer))
    batches = rewarded_batches()
    losses = [learn(critics, batches)["critic_loss"] for _ in range(30)]
    # Of values of 0 the error is the mean square of the returns.
    squares_t = _written(returns(batches, GAMMA), batches) ** 2
    assert losses[0] == pytest.approx(squares_t.mean(), rel=1e-5)
    assert losses[-1] < 0.5 * losses[0]
    assert credited_by(critics, batches)[1]["critic_explained_variance"] > 0.5


def test_a_critic_learns_from_its_own_members_alone():
    batches = rewarded_batches()
    # Other rewards for the members of the second critic.
    changed = [
        dataclasses.replace(
            b, reward_BT=np.where(b.member_BT % 2 == 1, 5 - b.reward_BT, b.reward_BT)
        )
        for b in batches
    ]
    one, other = _critics(), _critics()
    learn(one, batches)
    learn(other, changed)
    heads = [[np.asarray(s.params[HEAD]) for s in critics.state] for critics in (one, other)]
    np.testing.assert_array_equal(heads[0][0], heads[1][0])
    assert (heads[0][1] != heads[1][1]).any()


def test_epochs_and_minibatches_divide_the_batches_of_a_step():
    batches = rewarded_batches(groups=14)
    shares = [
        value_batches(
            batches,
            returns(batches, GAMMA),
            [(b.chunk_BT >= 0) & (b.group_BT % 2 == share) for b in batches],
        )
        for share in (0, 1)
    ]
    hp = dataclasses.replace(MINI, count=1, epochs=2, minibatches=2)
    divided, by_hand = _critics(hp), _critics(hp)
    found, sums = learn(divided, batches)["critic_loss"], []
    for some in shares * 2:
        sums.append(by_hand.update(some, 0, sum(int(b.own_BT.sum()) for b in some)))
    assert found == pytest.approx(sum(s["squares"] for s in sums) / sum(s["tokens"] for s in sums))
    jax.tree.map(np.testing.assert_array_equal, divided.state[0].params, by_hand.state[0].params)
    assert int(divided.state[0].step) == 4
    learn(divided, rewarded_batches(groups=1))  # which cannot be divided
    assert int(divided.state[0].step) == 6


def test_the_rows_of_a_microbatch_change_no_update():
    hp = dataclasses.replace(MINI, count=1, minibatches=2)
    (few, many), steps = (_critics(hp), _critics(hp)), []
    for critics, rows in ((few, 8), (many, 16)):
        batches = rewarded_batches(groups=14, rows=rows)
        steps.append(len(batches))
        learn(critics, batches)
    assert steps[0] > steps[1]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
        *(critics.state[0].params for critics in (few, many)),
    )


def test_the_policy_waits_for_all_updates_of_the_critics_first_steps():
    critics = _critics(dataclasses.replace(MINI, epochs=2, minibatches=2, warmup_steps=2))
    batches = rewarded_batches(groups=24)
    waits = []
    for _ in range(3):
        waits.append(critics.warming_up)
        learn(critics, batches)
    assert waits == [True, True, False]


def test_a_critic_without_responses_waits():
    critics = _critics(dataclasses.replace(MINI, warmup_steps=1))
    learn(critics, rewarded_batches(members=1))  # member 0 of each group
    assert [int(state.step) for state in critics.state] == [1, 0]
    assert not critics.warming_up, "and the policy does not wait for it"
    assert learn(critics, []) == {} and credited_by(critics, []) == ([], {})


def test_microbatches_change_nothing_but_rounding():
    (whole,) = rewarded_batches()
    halves = [
        dataclasses.replace(
            whole,
            **{
                name: np.concatenate([array[half], np.full_like(array[half], padding)])
                for name, array in vars(whole).items()
                if array is not None
                for padding in [-1 if name in ("chunk_BT", "member_BT", "group_BT") else 0]
            },
        )
        for half in (slice(0, 4), slice(4, 8))
    ]
    one, two = _with_heads(_critics()), _with_heads(_critics())
    np.testing.assert_allclose(
        learn(one, [whole])["critic_loss"],
        learn(two, halves)["critic_loss"],
        rtol=1e-5,
    )
    a, b = (jax.device_get([s.params for s in critics.state]) for critics in (one, two))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4), a, b)
    together = credited_by(one, [whole])[1]
    apart = credited_by(two, halves)[1]
    assert together == pytest.approx(apart, rel=1e-3)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("sizes", "axes"),
    [
        ({}, {"data": 2, "fsdp": 2, "context": 2}),
        (OWN_SHAPE, {"expert": 2, "tensor": 2}),
    ],
    ids=["rows and weights", "experts"],
)
def test_a_mesh_trains_critics_as_one_device(sizes, axes):
    hp = dataclasses.replace(MINI, **sizes)
    batches = rewarded_batches()

    def outcome(mesh):
        critics = _critics(hp, mesh)
        losses = [learn(critics, batches)["critic_loss"] for _ in range(2)]
        return losses, [_written([v], [b]) for v, b in zip(critics.values(batches)[0], batches * 2)]

    expected, found = outcome(mesh_of()), outcome(mesh_of(**axes))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-4)
    np.testing.assert_allclose(found[1], expected[1], atol=1e-3)


@pytest.mark.heavy
def test_critics_of_the_policys_shape_start_as_the_policy():
    critics = _critics(dataclasses.replace(MINI, count=1, **OWN_SHAPE))
    params = init_params(jax.random.key(7), POLICY)
    (state,) = critics.state
    assert "router_DE" in state.params["layers"][0] and not state.params[HEAD].any()
    for name in ("embed_VD", "final_norm_D", "layers"):
        jax.tree.map(np.testing.assert_array_equal, state.params[name], params[name])
    assert learn(critics, rewarded_batches())["critic_loss"] > 0


def test_critics_of_the_policys_shape_start_with_its_adapters_merged():
    adapters = new_adapters(jax.random.key(1), POLICY, LoraShape(rank=2, alpha=4.0, targets=("q",)))
    params = init_params(jax.random.key(7), POLICY) | jax.tree.map(jnp.ones_like, adapters)
    hp = dataclasses.replace(MINI, count=1, **OWN_SHAPE)
    made = Critics.make(hp, ModelSpec(POLICY, mesh_of()), params, jax.random.key(0))
    found, expected = made.state[0].params["layers"], merged(params)["layers"]
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_the_gradient_of_critics_with_experts_holds_the_routers_balance():
    shape, mesh = POLICY, mesh_of()
    params = init_table(jax.random.key(0), value_table(shape))
    rows = {name: getattr(rewarded_batches()[0], name) for name in critics_module.INPUTS}
    nothing = {"return_BT": np.zeros(rows["tokens_BT"].shape, np.float32)}
    nothing["own_BT"] = nothing["return_BT"] > 0

    def balance(params):
        stats = token_values(params, **rows, shape=shape, compute=FLOAT32)[1]
        return balancing_loss(router_sums(stats, rows["segment_BT"].reshape(-1) > 0, shape), shape)

    gradient = critics_module.critic_gradient(ModelSpec(shape, mesh, balance_weight=0.5))
    with jax.set_mesh(mesh):
        grads, _, _ = jax.jit(gradient)(params, params, rows | nothing, 1.0, 0.25)
    expected = jax.jit(jax.grad(balance))(params)
    assert np.abs(expected["layers"][0]["router_DE"]).max() > 1e-3
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y / 8, atol=1e-6), grads, expected)


def test_critics_start_apart():
    one, other = (state.params["embed_VD"] for state in _critics().state)
    assert np.abs(np.asarray(one) - np.asarray(other)).max() > 0.1


def test_the_policy_waits_for_the_warm_up():
    critics = _critics(dataclasses.replace(MINI, warmup_steps=2))
    waits = []
    for _ in range(3):
        waits.append(critics.warming_up)
        learn(critics, rewarded_batches())
    assert waits == [True, True, False]


def test_a_run_that_goes_on_has_the_same_critics(tmp_path):
    mesh = mesh_of()
    policy = init_state(jax.random.key(0), POLICY, make_optimizer(HYPERS, POLICY), mesh)
    critics, batches = _critics(mesh=mesh), rewarded_batches()
    learn(critics, batches)
    with Checkpoints(tmp_path, 1, lambda *_, **__: None) as checkpoints:
        checkpoints.save(1, {"policy": policy, "critics": critics.state}, {})
        learn(critics, batches)
        fresh = _critics(mesh=mesh)
        target = {"policy": policy, "critics": fresh.state}
        checkpoints.wait()
        _, restored, _ = checkpoints.restore_latest(target)
    fresh.state = restored["critics"]
    learn(fresh, batches)
    left, right = ([jax.device_get(s) for s in c.state] for c in (critics, fresh))
    jax.tree.map(np.testing.assert_array_equal, left, right)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"count": -1}, "count -1 must be in"),
        ({"width": 0}, r"are \[0, 1, 2, 1, 8, 24\]: all must be at least 1, or all 0"),
        ({"lam": 1.5}, "lam 1.5 must be in"),
        ({"mask_share": 1.5}, "mask_share 1.5 must be in"),
        ({"count": 1, "mask_share": 0.2}, "mask_share 0.2 needs critics that can differ"),
        ({"count": 1, "entropy_share": 0.2}, "entropy_share 0.2 needs critics that can differ"),
        ({"warmup_steps": -1}, "warmup_steps -1 must be in"),
        ({"epochs": 0}, "epochs 0 must be in"),
        ({"minibatches": 0}, "minibatches 0 must be in"),
    ],
)
def test_what_cannot_work_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(MINI, **fields)


def test_a_group_is_divided_evenly_or_refused():
    MINI.check_group(4)
    dataclasses.replace(MINI, count=0).check_group(5)
    with pytest.raises(
        ValueError, match=r"group_size 5 cannot be divided .* 2 critics: set it to 6"
    ):
        MINI.check_group(5)
