"""Estimates what a run holds in the memory of each device, before anything is allocated."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

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
from ale_jax.config.model import FULL, SAME, LoraShape
from ale_jax.config.run import RunConfig
from ale_jax.data.staleness import StalenessGate
from ale_jax.learn.critics import abstract_critics
from ale_jax.learn.state import abstract_trained, make_optimizer, place_moments
from ale_jax.model.capacity_dispatch import SLACK
from ale_jax.model.gated_delta import CHUNK
from ale_jax.model.guides import guides_bytes, masks_bytes
from ale_jax.model.layers import scanned
from ale_jax.model.memory import cache_shardings, empty_cache
from ale_jax.model.params import is_param, param_table
from ale_jax.model.policy import SCORE_BLOCK
from ale_jax.model.replicas import devices_of_engine, engine_sizes
from ale_jax.model.sampling_weights import (
    adapter_shardings,
    has_own_weights,
    sampler_shardings,
    served_adapters,
    served_weights,
)
from ale_jax.model.sharding import (
    RULES,
    SAMPLER_RULES,
    abstract_mesh,
    mesh_sizes,
    num_data_shards,
    param_shardings,
)
from ale_jax.model.state_memory import states_of
from ale_jax.model.weights.shape import policy_shape
from ale_jax.system.teacher import teacher_bytes

GIB = 1 << 30
TRAINING_REMEDY = (
    "shard over more devices (mesh.fsdp, expert, tensor), or lower engine.pages (then fewer tokens "
    "of conversations are on the devices at once, and others wait on the host) or "
    "learn.microbatch_rows, or set learn.remat to layers"
)


@dataclasses.dataclass(frozen=True)
class Need:
    """Bytes of one device's memory, and what they are used for."""

    what: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a run, or something else, needs of each device. needs: at the moment of peak use. has:
    bytes available on a device; 0 if unknown. remedy: if it does not fit."""

    chip: str
    mesh: dict[str, int]
    needs: tuple[Need, ...]
    has: int
    what: str = "the run"
    remedy: str = TRAINING_REMEDY

    @property
    def total(self) -> int:
        return sum(need.bytes for need in self.needs)

    def __str__(self) -> str:
        axes = ", ".join(f"{axis} {size}" for axis, size in self.mesh.items() if size > 1)
        head = f"{math.prod(self.mesh.values())} x {self.chip} ({axes or 'whole'}), GiB of each:"
        rows = [(need.what, need.bytes) for need in self.needs] + [("total", self.total)]
        rows += [("available", self.has)] if self.has else []
        return "\n".join([head, *(f"  {what:48} {size / GIB:9.3f}" for what, size in rows)])

    def require_fit(self) -> None:
        """Raises ValueError if the run does not fit."""
        if self.has and self.total > self.has:
            most = max(self.needs, key=lambda need: need.bytes)
            raise ValueError(
                f"{self.what} needs {self.total / GIB:.1f} GiB of each {self.chip}, which has "
                f"{self.has / GIB:.1f}; the largest part, {most.bytes / GIB:.1f}, is {most.what}: "
                + self.remedy
            )


def make_plan(config: RunConfig) -> Plan:
    """Plans for the chips that `config.hardware` names, or else for the local devices."""
    chip, mesh, has = planned(config)
    policy = policy_shape(config, config.tokenizer.vocab_size)
    return Plan(chip, dict(mesh.shape), tuple(_needs(config, policy, mesh)), has)


def planned(config: RunConfig) -> tuple[str, AbstractMesh, int]:
    """Returns what is planned for: the chip, the mesh, and the bytes that a device has; 0 if that
    is unknown."""
    hardware = config.hardware
    chip = hardware.chip or jax.devices()[0].device_kind
    sizes = mesh_sizes(config.mesh, hardware.devices or jax.device_count())
    has = int(CHIPS[chip] * GIB) if hardware.chip else _memory_of(jax.local_devices()[0])
    return chip, abstract_mesh(sizes), has


def _memory_of(device: jax.Device) -> int:
    """0 if the platform does not report it, as on CPU."""
    return (device.memory_stats() or {}).get("bytes_limit", 0)


def _needs(config: RunConfig, policy: PolicyShape, mesh: AbstractMesh) -> list[Need]:
    """The needs at the moment of peak use. It is while a teacher's weights are there that do not
    stay, while a step is computed, or when the sampler is given the next version's weights while it
    still holds its own."""
    always, *others = (
        list(part(config, policy, mesh)) for part in (_always, _scoring, _computing, _publishing)
    )
    return always + max(others, key=_total)


def _always(config: RunConfig, policy: PolicyShape, mesh: AbstractMesh) -> Iterator[Need]:
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
    optimizer = make_optimizer(config.rl_optimizer, policy, config.lora)
    moments = jax.eval_shape(optimizer.init, moved)
    places = place_moments(optimizer, moved, mesh)
    yield Need("moments of the optimizer", bytes_of(_placed(moments, places)))
    yield from sampler_needs(config, policy, mesh)
    if critics := abstract_critics(config.critics, policy, mesh):
        yield Need("critics: weights and moments", sum(map(bytes_of, critics)))


def sampler_needs(config: RunConfig, policy: PolicyShape, mesh: AbstractMesh) -> Iterator[Need]:
    """Yields what an engine holds beside the learner's weights. mesh: of the learner."""
    engine = engine_mesh(config, mesh)
    if own := _sampler_bytes(config, policy, mesh, engine):
        stored_as = config.engine.weights
        name = config.learn.compute_dtype if stored_as == SAME else stored_as
        yield Need(f"weights of the sampler, {name}", own)
    if config.lora.rank:
        yield Need("adapters of the sampler", _sampler_adapters(config, policy, engine))
    (cache, states), shape = _cache_bytes(config, policy, engine), config.engine
    yield Need("keys and values of the sampler", cache)
    if states:
        yield Need("states of the sampler", states)
    # Out and in, and what the dispatch before has copied out if that one is not read yet.
    each = shape.shard(num_data_shards(engine))
    swapped = (2 + shape.dispatch_ahead) * each.swapped_pages
    copies = cache * swapped // each.pages
    if states:  # of each conversation, with one page or more
        most = min(each.swapped_pages, each.max_sequences)
        copies += states * (2 + shape.dispatch_ahead) * most // each.max_sequences
    yield Need("pages on their way to the host or back", copies)
    guides = guides_bytes(policy, config.engine.max_sequences, config.engine.decode_steps)
    yield Need("what guides the sampler's tokens", guides)


def _scoring(config: RunConfig, policy: PolicyShape, mesh: AbstractMesh) -> Iterator[Need]:
    if not config.teacher.stays:
        yield Need("weights of the teacher", teacher_bytes(config, policy, mesh))


def _computing(config: RunConfig, policy: PolicyShape, mesh: AbstractMesh) -> Iterator[Need]:
    updates = [list(_updating(config, policy, config.lora, mesh))]
    if config.critics.count:  # after the policy, one at a time, and all of their weights
        updates.append(list(_updating(config, config.critics.shape(policy), FULL, mesh)))
    yield from max(updates, key=_total)
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
    tokens = _tokens_per_device(config, mesh)
    values = sum(_kept_per_token(shape, layer, compute.remat, mesh) for layer in shape.layers)
    kept = values * jnp.dtype(compute.compute_dtype).itemsize
    if gathered := _gathered_bytes(shape, lora, compute.compute_dtype, mesh):
        yield Need("weights gathered for use, and their gradient", gathered)
    yield Need("activations kept for the backward pass", tokens * kept)
    yield Need("one layer in progress, forward and backward", tokens * _layer(shape, compute, mesh))


def _publishing(config: RunConfig, policy: PolicyShape, mesh: AbstractMesh) -> Iterator[Need]:
    yield Need("weights before the step", bytes_of(abstract_trained(policy, config.lora, mesh)))
    engine = engine_mesh(config, mesh)
    if config.lora.rank:
        yield Need(
            "adapters of the sampler, next version", _sampler_adapters(config, policy, engine)
        )
        return
    own = _sampler_bytes(config, policy, mesh, engine)
    yield Need("weights of the sampler, next version", own)


def _total(needs: Sequence[Need]) -> int:
    return sum(need.bytes for need in needs)


def bytes_of(tree: Any) -> int:
    """Returns the bytes of one device's shards."""
    leaves = jax.tree.leaves(tree)
    return sum(
        math.prod(x.sharding.shard_shape(x.shape)) * jnp.dtype(x.dtype).itemsize for x in leaves
    )


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
    # The embedding is gathered as it is stored. Their gradients are summed in float32.
    itemsize = jnp.dtype(dtype).itemsize
    has_gradient = not lora.rank
    ends = 4 + itemsize + 2 * 4 * has_gradient
    return sizes["embed_VD"] * ends + layer * itemsize * (1 + has_gradient)


def _placed(tree: Any, places: Any) -> Any:
    return jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree, places
    )


def engine_mesh(config: RunConfig, mesh: AbstractMesh) -> AbstractMesh:
    """Returns the mesh of one engine. ValueError if a process cannot be divided among engines, or
    experts or heads over one of them."""
    hardware = config.hardware
    of_process = hardware.devices_per_process if hardware.chip else jax.local_device_count()
    devices = devices_of_engine(of_process or mesh.size, config.rollout.devices_per_engine)
    return abstract_mesh(engine_sizes(mesh.shape, devices))


def _sampler_bytes(
    config: RunConfig, policy: PolicyShape, mesh: AbstractMesh, engine: AbstractMesh
) -> int:
    """Of the weights without adapters; 0 if the sampler uses the learner's own arrays."""
    dtype, stored_as = config.learn.compute_dtype, config.engine.weights
    if engine == mesh and not has_own_weights(config.learn, mesh, stored_as):
        return 0
    serve = partial(served_weights, shape=policy, dtype=dtype, stored_as=stored_as)
    weights = jax.eval_shape(serve, abstract_trained(policy, FULL, mesh))
    return bytes_of(_placed(weights, sampler_shardings(weights, policy, engine)))


def _sampler_adapters(config: RunConfig, policy: PolicyShape, engine: AbstractMesh) -> int:
    adapters = abstract_trained(policy, config.lora, engine)
    return adapter_bytes(adapters, config.learn.compute_dtype, policy, engine)


def adapter_bytes(learned: Any, dtype: str, policy: PolicyShape, engine: AbstractMesh) -> int:
    """Returns the bytes of one device's part of a sampler's adapters. learned: the learner's, as
    shapes. engine: the mesh of the sampler."""
    serve = partial(served_adapters, dtype=dtype)
    adapters = jax.eval_shape(serve, {"adapters": learned})
    return bytes_of(_placed(adapters, adapter_shardings(adapters, policy, engine)))


def _cache_bytes(config: RunConfig, policy: PolicyShape, mesh: AbstractMesh) -> tuple[int, int]:
    """The bytes of pages, and of states."""
    engine = config.engine
    engine.shard(num_data_shards(mesh))  # ValueError if it cannot be divided
    dtype = jnp.int8 if engine.int8_cache else jnp.dtype(config.learn.compute_dtype)
    platform = config.hardware.platform or jax.default_backend()
    room = engine.pages, engine.page_tokens, dtype, engine.max_sequences, platform
    cache = jax.eval_shape(partial(empty_cache, policy, *room))
    sizes = [
        bytes_of(_placed(kept, jax.tree.map(lambda _, place=place: place, kept)))
        for kept, place in zip(cache, cache_shardings(policy, mesh), strict=True)
    ]
    of_states = sum(n for n, kept in zip(sizes, cache, strict=True) if states_of([kept]))
    return sum(sizes) - of_states, of_states


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
