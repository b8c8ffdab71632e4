"""Estimates what a run holds in the memory of each device, before anything is allocated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh

from ale_jax.config.architecture import (
    GatedDelta,
    Latent,
    Layer,
    Mixer,
    PolicyShape,
    ShortConv,
)
from ale_jax.config.hardware import CHIPS
from ale_jax.config.model import FULL, LoraShape
from ale_jax.config.run import RunConfig
from ale_jax.data.staleness import StalenessGate
from ale_jax.learn.critics import abstract_critics
from ale_jax.learn.state import abstract_trained, make_optimizer, place_moments
from ale_jax.model.capacity_dispatch import SLACK
from ale_jax.model.gated_delta import CHUNK
from ale_jax.model.guides import masks_bytes
from ale_jax.model.layers import scanned
from ale_jax.model.params import is_param, param_table
from ale_jax.model.policy import SCORE_BLOCK
from ale_jax.model.rounded import abstract_rounded
from ale_jax.model.sharding import (
    RULES,
    SAMPLER_RULES,
    abstract_mesh,
    mesh_sizes,
    num_data_shards,
    param_shardings,
)
from ale_jax.model.sides import num_devices, num_learners
from ale_jax.model.weights.shape import policy_shape
from ale_jax.system.engine_memory import (
    engine_mesh,
    engine_needs,
    lent_needs,
    next_version,
    sent_weights,
)
from ale_jax.system.lending import borrowing_mesh, lending_of
from ale_jax.system.needs import Need, bytes_of, placed, total
from ale_jax.system.teacher import teacher_bytes

GIB = 1 << 30
TRAINING_REMEDY = (
    "shard over more devices (mesh.fsdp, expert, tensor), or lower engine.pages (then fewer tokens "
    "of conversations are on the devices at once, and others wait on the host) or "
    "learn.microbatch_rows, or set learn.remat to layers"
)


@dataclasses.dataclass(frozen=True)
class Side:
    """What a run needs of each of some devices. name: of what they are for; empty if all are for
    the same. mesh: of the learner, or of one engine. needs: at the moment of peak use."""

    name: str
    devices: int
    mesh: dict[str, int]
    needs: tuple[Need, ...]

    @property
    def total(self) -> int:
        return total(self.needs)

    def table(self, chip: str, has: int) -> str:
        """Returns the needs as a text. has: bytes available on a device."""
        axes = ", ".join(f"{axis} {size}" for axis, size in self.mesh.items() if size > 1)
        head = f"{self.devices} x {chip}{self.name} ({axes or 'whole'}), GiB of each:"
        rows = [(need.what, need.bytes) for need in self.needs] + [("total", self.total)]
        rows += [("available", has)] if has else []
        return "\n".join([head, *(f"  {what:48} {size / GIB:9.3f}" for what, size in rows)])


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run, or something else, needs of each device. sides: the learner's devices before the
    engines', if these have some for themselves. has: bytes available on a device; 0 if unknown.
    remedy: if it does not fit."""

    chip: str
    sides: tuple[Side, ...]
    has: int
    what: str = "the run"
    remedy: str = TRAINING_REMEDY

    @property
    def needs(self) -> tuple[Need, ...]:
        """Those of all sides."""
        return tuple(need for side in self.sides for need in side.needs)

    @property
    def total(self) -> int:
        """Bytes of a device of the side that needs most."""
        return max(side.total for side in self.sides)

    def __str__(self) -> str:
        return "\n".join(side.table(self.chip, self.has) for side in self.sides)

    def require_fit(self) -> None:
        """Raises ValueError if the run does not fit."""
        side = max(self.sides, key=lambda side: side.total)
        if self.has and side.total > self.has:
            most = max(side.needs, key=lambda need: need.bytes)
            raise ValueError(
                f"{self.what} needs {side.total / GIB:.1f} GiB of each {self.chip}{side.name}, "
                f"which has {self.has / GIB:.1f}; the largest part, {most.bytes / GIB:.1f}, is "
                f"{most.what}: {self.remedy}"
            )


def make_plan(config: RunConfig) -> Plan:
    """Plans for the chips that `config.hardware` names, or else for the local devices."""
    chip, mesh, has = planned(config)
    policy = policy_shape(config, config.tokenizer.vocab_size)
    return Plan(chip, tuple(_sides(config, policy, mesh)), has)


def planned(config: RunConfig) -> tuple[str, AbstractMesh, int]:
    """Returns what is planned for: the chip, the mesh, and the bytes that a device has; 0 if that
    is unknown."""
    hardware = config.hardware
    chip = hardware.chip or jax.devices()[0].device_kind
    sizes = mesh_sizes(config.mesh, num_learners(config))
    has = int(CHIPS[chip] * GIB) if hardware.chip else _memory_of(jax.local_devices()[0])
    return chip, abstract_mesh(sizes), has


def plan_here(config: RunConfig) -> Plan:
    """Plans for the devices of this run, whatever hardware the config names."""
    here = dataclasses.replace(config.hardware, chip="", devices=0)
    return make_plan(dataclasses.replace(config, hardware=here))


def _memory_of(device: jax.Device) -> int:
    """0 if the platform does not report it, as on CPU."""
    return (device.memory_stats() or {}).get("bytes_limit", 0)


def _sides(config: RunConfig, policy: PolicyShape, mesh: AbstractMesh) -> Iterator[Side]:
    """The needs at the moment of peak use. It is while a teacher's weights are there that do not
    stay, while a step is computed, or when weights are published."""
    of = config, policy, mesh
    learning, sampling, publishing = _learning(*of), engine_needs(*of), _publishing(*of)
    updating = list(_scoring(*of)), list(_computing(*of))
    sizes = dict(mesh.shape)
    borrows = lending_of(config) is not None
    if not config.rollout.engine_devices:
        published = [*publishing, *next_version(*of)]
        yield Side("", mesh.size, sizes, _peak([*learning, *sampling], *updating, published))
        return
    borrowed = list(_borrowing(*of)) if borrows else []
    sent, received = [*publishing, *sent_weights(*of)], list(next_version(*of))
    needs = _peak([*learning], *updating, borrowed, sent)
    yield Side(" for the learner", mesh.size, sizes, needs)
    others, engine = num_devices(config) - mesh.size, dict(engine_mesh(config, mesh).shape)
    needs = max(_peak([*sampling], received), (*lent_needs(*of), *borrowed), key=total)
    yield Side(" for engines", others, engine, needs)


def _peak(always: list[Need], *phases: list[Need]) -> tuple[Need, ...]:
    return (*always, *max(phases, key=total))


def _borrowing(config: RunConfig, policy: PolicyShape, mesh: AbstractMesh) -> Iterator[Need]:
    """Of an update on lent devices, too. The learner has its own state beside it."""
    wide = borrowing_mesh(config, mesh.shape)
    whole, moved = (abstract_trained(policy, lora, wide) for lora in (FULL, config.lora))
    both = bytes_of(whole) + (bytes_of(moved) if config.lora.rank else 0)
    yield Need("weights and moments, over lent devices, too", both + _moments(config, policy, wide))
    yield from _computing(config, policy, wide)


def _moments(config: RunConfig, policy: PolicyShape, mesh: AbstractMesh) -> int:
    optimizer = make_optimizer(config.rl_optimizer, policy, config.lora)
    moved = abstract_trained(policy, config.lora, mesh)
    moments = jax.eval_shape(optimizer.init, moved)
    return bytes_of(placed(moments, place_moments(optimizer, moved, mesh)))


def _learning(config: RunConfig, policy: PolicyShape, mesh: AbstractMesh) -> Iterator[Need]:
    whole, moved = (abstract_trained(policy, lora, mesh) for lora in (FULL, config.lora))
    yield Need("weights, float32", bytes_of(whole) + (bytes_of(moved) if config.lora.rank else 0))
    if config.algo.old_logp == "generating":
        older = StalenessGate(config.rl.alpha, config.rl.groups_per_step).max_age
        if older:
            yield Need("weights of older versions, for pi_old", older * bytes_of(moved))
    if config.teacher.stays and (teacher := teacher_bytes(config, policy, mesh)):
        yield Need("weights of the teacher", teacher)
    if config.algo.loss.reads_reference and not config.teacher.is_given:
        yield Need("weights of the reference", bytes_of(moved))
    yield Need("moments of the optimizer", _moments(config, policy, mesh))
    if critics := abstract_critics(config.critics, policy, mesh):
        yield Need("critics: weights and moments", sum(map(bytes_of, critics)))


def _scoring(config: RunConfig, policy: PolicyShape, mesh: AbstractMesh) -> Iterator[Need]:
    if not config.teacher.stays:
        yield Need("weights of the teacher", teacher_bytes(config, policy, mesh))


def _computing(config: RunConfig, policy: PolicyShape, mesh: AbstractMesh) -> Iterator[Need]:
    updates = [list(_updating(config, policy, config.lora, mesh))]
    if config.critics.count:  # after the policy, one at a time, and all of their weights
        updates.append(list(_updating(config, config.critics.shape(policy), FULL, mesh)))
    yield from max(updates, key=total)
    tokens = _tokens_per_device(config, mesh)
    logits = min(tokens, SCORE_BLOCK) * policy.vocab_size // mesh.shape["tensor"]
    yield Need("logits of a block of tokens, and their gradient", 3 * 4 * logits)
    rows = config.learn.microbatch_rows // num_data_shards(mesh)
    if config.train_sampling.cuts:  # of each token its own
        masks = masks_bytes(policy, rows, config.learn.pack_length)
        yield Need("masks of what top_k, top_p and min_p left", masks)
    elif config.external_agent.command:  # our own loop asks for free replies
        yield Need("masks of replies that schemas restrict", masks_bytes(policy, rows))


def _updating(
    config: RunConfig, shape: PolicyShape, lora: LoraShape, mesh: AbstractMesh
) -> Iterator[Need]:
    """Of the gradient of a model, of which `lora` tells what is trained."""
    compute = config.learn
    # The second copy is the gradient of the microbatch that is being computed.
    alone, stacked = _gradient_bytes(shape, lora, compute.compute_dtype, mesh)
    moved = bytes_of(abstract_trained(shape, lora, mesh))
    yield Need("gradients, float32: the sum and one more", moved + alone)
    if stacked:
        yield Need("weights of the layers, stacked, and their gradient", stacked)
    if compute.compute_dtype != "float32":
        whole = abstract_trained(shape, FULL, mesh)
        copies = bytes_of(abstract_rounded(whole, compute.compute_dtype))
        yield Need(f"weights in {compute.compute_dtype} for all microbatches", copies)
    tokens = _tokens_per_device(config, mesh)
    values = sum(_kept_per_token(shape, layer, compute.remat, mesh) for layer in shape.layers)
    kept = values * jnp.dtype(compute.compute_dtype).itemsize
    if gathered := _gathered_bytes(shape, lora, compute.compute_dtype, mesh):
        yield Need("weights gathered for use, and their gradient", gathered)
    yield Need("activations kept for the backward pass", tokens * kept)
    yield Need("one layer in progress, forward and backward", tokens * _layer(shape, compute, mesh))


def _publishing(config: RunConfig, policy: PolicyShape, mesh: AbstractMesh) -> Iterator[Need]:
    yield Need("weights before the step", bytes_of(abstract_trained(policy, config.lora, mesh)))


def _gradient_bytes(
    shape: PolicyShape, lora: LoraShape, dtype: str, mesh: AbstractMesh
) -> tuple[int, int]:
    """Of a microbatch's gradient: what lies in the weights' own form, and, for layers that are
    scanned, what lies in stacks, together with the stack of the weights.

    Adapters are small. The weights that they lie beside are stacked, and have no gradient.
    """
    moved = bytes_of(abstract_trained(shape, lora, mesh))
    layers = bytes_of(scanned(shape.layers, abstract_trained(shape, FULL, mesh)["layers"]))
    stacked = layers * jnp.dtype(dtype).itemsize // 4
    return (moved, stacked) if lora.rank else (moved - layers, 2 * stacked)


def _gathered_bytes(shape: PolicyShape, lora: LoraShape, dtype: str, mesh: AbstractMesh) -> int:
    """Of weights that fsdp divides and that are gathered for a product: embedding and head, and the
    layer in progress; 0 without fsdp."""
    if mesh.shape["fsdp"] == 1:
        return 0
    table, places = param_table(shape), param_shardings(shape, mesh, SAMPLER_RULES)
    sizes = jax.tree.map(
        lambda param, place: math.prod(place.shard_shape(param.shape)),
        *(table, places),
        is_leaf=is_param,
    )
    layer = max(sum(each.values()) for each in sizes["layers"])
    itemsize = jnp.dtype(dtype).itemsize
    has_gradient = not lora.rank
    ends = 2 * itemsize + 2 * 4 * has_gradient  # their gradients are summed in float32
    return sizes["embed_VD"] * ends + layer * itemsize * (1 + has_gradient)


def _tokens_per_device(config: RunConfig, mesh: AbstractMesh) -> int:
    parts = math.prod(mesh.shape[axis] for axis in (*RULES["batch"], *RULES["sequence"]))
    return config.learn.microbatch_rows * config.learn.pack_length // parts


def _kept_per_token(policy: PolicyShape, layer: Layer, remat: str, mesh: AbstractMesh) -> int:
    """Values per token of one layer that are kept for the backward pass."""
    if remat == "layers":
        return policy.width
    heads, inner = _widths(policy, layer, mesh)
    if remat == "dots":
        return 3 * policy.width + heads + inner
    return 8 * policy.width + 3 * heads + 4 * inner


def _layer(policy: PolicyShape, compute, mesh: AbstractMesh) -> int:
    """Bytes per token while a layer is recomputed and its gradient computed."""
    widths = [_widths(policy, layer, mesh) for layer in policy.layers]
    heads, inner = (max(each) for each in zip(*widths, strict=True))
    size = jnp.dtype(compute.compute_dtype).itemsize
    return 2 * size * (6 * policy.width + 3 * heads + 3 * inner)


def _heads_width(mixer: Mixer, tensor: int) -> int:
    """Values per token of queries, keys and values, and of the latents that they are made of."""
    if isinstance(mixer, Latent):
        of_head = 2 * mixer.expanded.head_width + mixer.value_width
        return mixer.num_heads * of_head // tensor + mixer.stored_width + mixer.q_rank
    if isinstance(mixer, GatedDelta):  # what the outputs are gated by, and chunks' states
        keys = 2 * mixer.num_key_heads * mixer.key_width
        states = mixer.num_value_heads * mixer.key_width * mixer.value_width // CHUNK
        return (keys + 2 * mixer.num_value_heads * mixer.value_width + states) // tensor
    if isinstance(mixer, ShortConv):
        return 3 * mixer.width // tensor
    return (mixer.num_heads + 2 * mixer.num_kv_heads) * mixer.head_width // tensor


def _widths(policy: PolicyShape, layer: Layer, mesh: AbstractMesh) -> tuple[int, int]:
    """Values per token of (queries, keys and values; the feed-forward block).

    In a mixture of experts, each of a token's K experts has buffers for more than its mean load,
    and tokens are sent to the experts and back.
    """
    tensor = mesh.shape["tensor"]
    experts, heads = layer.experts, _heads_width(layer.mixer, tensor)
    if not experts:
        return heads, layer.feed_forward.width // tensor
    travels = SLACK if mesh.shape["expert"] > 1 else 1
    row = experts.width // tensor + policy.width
    return heads, int(experts.per_token * SLACK * travels * row) + experts.shared // tensor
