"""What the compiled step holds, gives away and computes again; and that it is compiled once."""

import logging
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from ale_jax.algo.losses import sft_loss
from ale_jax.config.hardware import MeshShape
from ale_jax.config.learn import Shape
from ale_jax.config.model import DTYPES, FLOAT32, REMAT, Compute
from ale_jax.data.packing import pack_all
from ale_jax.learn.state import init_state, make_optimizer
from ale_jax.learn.step import ModelSpec, forward, make_train_step
from ale_jax.model.guides import num_words
from ale_jax.model.params import init_params
from ale_jax.model.policy import SCORE_BLOCK, hidden_states
from ale_jax.model.sharding import batch_sharding, make_mesh, param_shardings
from ale_jax.records import MAX_MASKS
from tests.learn.test_step import ADAFACTOR, sample_transcripts, transcript_loss
from tests.model.shapes import DENSE, MOE, changed
from tests.rows import each_row

TOKENS = (64, 128)
WIDE = changed(DENSE, num_layers=1, vocab_size=8192)
DEEP = changed(DENSE, num_layers=3)


def _batch(rows, pack_length, vocab_size):
    tokens = np.random.default_rng(0).integers(0, vocab_size, (rows, pack_length)).astype(np.int32)
    position = np.tile(np.arange(pack_length, dtype=np.int32) % (pack_length // 2), (rows, 1))
    return {
        "tokens_BT": tokens,
        "position_BT": position,
        "segment_BT": 1
        + (np.arange(pack_length, dtype=np.int32) >= pack_length // 2)
        + 0 * position,
        "chunk_BT": np.where(position > 3, 0, -1).astype(np.int32),
    }


def _masked(batch, vocab_size):
    """The same tokens, all of them sampled under a mask."""
    tokens_BT = batch["tokens_BT"]
    table = len(tokens_BT), MAX_MASKS, num_words(vocab_size)
    masks = {
        "mask_id_BT": np.zeros(tokens_BT.shape, np.int16),
        "mask_BIw": np.full(table, -1, np.int32),
    }
    return batch | masks


def _abstract_params():
    return jax.eval_shape(lambda: init_params(jax.random.key(0), WIDE))


def _gradient(shape, compute=FLOAT32, of=jax.grad):
    def loss(params, batch):
        scores, _ = forward(params, batch, shape, compute)
        return sft_loss(scores.logp_BT, batch["chunk_BT"], 1e3)[0] + scores.entropy_BT.mean()

    return jax.jit(of(loss))


def _largest_array(program):
    """Elements of the largest array of a compiled program, on one device."""
    shapes = re.findall(r"\b[a-z]+\d+\[([\d,]+)\]", program.as_text())
    assert shapes
    return max(math.prod(map(int, dims.split(","))) for dims in shapes)


def _abstract(tree, shardings):
    def describe(x, sharding):
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

    return jax.tree.map(describe, tree, shardings)


@pytest.mark.parametrize("masks", [lambda batch, size: batch, _masked], ids=["", "masked"])
def test_logits_are_held_of_one_block_alone(masks):
    params = _abstract_params()
    batch = masks(_batch(*TOKENS, WIDE.vocab_size), WIDE.vocab_size)
    program = _gradient(WIDE).lower(params, batch).compile()
    assert _largest_array(program) == SCORE_BLOCK * WIDE.vocab_size
    assert program.memory_analysis().temp_size_in_bytes < 4 * math.prod(TOKENS) * WIDE.vocab_size


@each_row("rows, products", [(SCORE_BLOCK // 128, 3), (SCORE_BLOCK // 64, 4)])
def test_logits_of_a_single_block_are_not_recomputed(rows, products):
    gradient = _gradient(WIDE, of=jax.value_and_grad)
    lowered = gradient.lower(_abstract_params(), _batch(rows, 128, WIDE.vocab_size))
    found = re.findall(rf"dot_general .*x{WIDE.vocab_size}x", lowered.as_text())
    assert len(found) == products


@pytest.mark.parametrize("masks", [lambda batch, size: batch, _masked], ids=["", "masked"])
def test_logits_stay_cut_where_the_vocabulary_is(masks):
    mesh = make_mesh(MeshShape(data=4, tensor=2))
    params = _abstract_params()
    params = _abstract(params, param_shardings(WIDE, mesh))
    batch = masks(_batch(*TOKENS, WIDE.vocab_size), WIDE.vocab_size)
    batch = _abstract(batch, dict.fromkeys(batch, batch_sharding(mesh)))
    with jax.set_mesh(mesh):
        program = _gradient(WIDE).lower(params, batch).compile()
    assert _largest_array(program) == SCORE_BLOCK * WIDE.vocab_size // 2


@pytest.mark.heavy
def test_what_is_recomputed_frees_memory_and_changes_no_gradient():
    params = init_params(jax.random.key(0), DEEP)
    batch = _batch(4, 256, DEEP.vocab_size)
    # XLA removes on CPUs, and only there, what keeps a recomputation from being done too early.
    options = {"xla_disable_hlo_passes": "cse_barrier_expander"}
    memory, grads = {}, {}
    for remat in REMAT:
        lowered = _gradient(DEEP, Compute(remat=remat)).lower(params, batch)
        program = lowered.compile(compiler_options=options)
        memory[remat] = program.memory_analysis().temp_size_in_bytes
        grads[remat] = program(params, batch)
    assert memory["layers"] < memory["dots"] < memory["none"]
    assert memory["layers"] < 0.6 * memory["none"]
    for remat in ("dots", "layers"):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), grads["none"], grads[remat]
        )


@pytest.mark.heavy
def test_bfloat16_computes_nearly_the_same_float32_gradients():
    shape = changed(MOE, num_layers=1)
    params, batch = init_params(jax.random.key(0), shape), _batch(2, 128, shape.vocab_size)
    exact, rounded = (_gradient(shape, Compute(dtype))(params, batch) for dtype in DTYPES)
    assert {g.dtype for g in jax.tree.leaves(rounded)} == {jnp.dtype("float32")}
    arrays = [batch[name] for name in ("tokens_BT", "position_BT", "segment_BT")]
    hidden, _ = jax.eval_shape(
        lambda params: hidden_states(params, *arrays, shape, Compute("bfloat16")), params
    )
    assert hidden.dtype == jnp.bfloat16

    def angle(a, b):
        assert (a != b).any()
        cosine = (a * b).sum() / jnp.sqrt((a * a).sum() * (b * b).sum())
        assert cosine > 0.99

    jax.tree.map(angle, exact, rounded)


def test_a_step_is_compiled_once_and_gives_its_moments_away(caplog):
    shape = changed(DENSE, width=128, vocab_size=128, num_layers=1)  # to be factored
    mesh = make_mesh(MeshShape(data=2, fsdp=2, tensor=2))
    optimizer = make_optimizer(ADAFACTOR, shape)
    state = init_state(jax.random.key(0), shape, optimizer, mesh)
    step = make_train_step(ModelSpec(shape, mesh, Compute("bfloat16")), optimizer, transcript_loss)
    batches = pack_all(sample_transcripts(36), Shape(8, 64, 8))
    assert len(batches) > 1

    def compiled_in_a_step():
        nonlocal state
        with jax.log_compiles(), caplog.at_level(logging.WARNING):
            caplog.clear()
            before, (state, *_) = state, step(state, batches, 100.0)
        assert all(x.is_deleted() for x in jax.tree.leaves(before.opt_state) if x.size > 1)
        assert not any(x.is_deleted() for x in jax.tree.leaves(before.params))
        return sum("Finished XLA compilation" in r.getMessage() for r in caplog.records)

    assert compiled_in_a_step() > 0
    assert compiled_in_a_step() == compiled_in_a_step() == 0
    for weight, sharding in zip(
        jax.tree.leaves(state.params), jax.tree.leaves(param_shardings(shape, mesh)), strict=True
    ):
        assert weight.sharding == sharding


def test_factored_moments_lie_as_their_weights_do():
    shape = changed(DENSE, width=128, vocab_size=256, num_layers=1)
    mesh = make_mesh(MeshShape(data=2, fsdp=2, tensor=2))
    optimizer = make_optimizer(ADAFACTOR, shape)
    state = init_state(jax.random.key(0), shape, optimizer, mesh)
    factored = {
        jax.tree_util.keystr(path): moment
        for path, moment in jax.tree_util.tree_leaves_with_path(state.opt_state)
    }
    placed = {
        moment.shape: moment.sharding.spec
        for name, moment in factored.items()
        if name.endswith("['embed_VD']") and moment.size > 1
    }
    assert placed == {(256,): PartitionSpec("tensor"), (128,): PartitionSpec("fsdp")}
