"""Learning-rate schedules: they fall over a fixed number of updates, after the warmup or from an
event of the run on.

Where success comes by a jump whose time is a matter of chance, a rate that falls by a fixed count
may be too small before the jump has come. It then waits for the event.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding, PartitionSpec

LEAST = 0.1  # what is left of a rate that has fallen
NEVER = jnp.iinfo(jnp.int32).max


def rate_schedule(rate: float, warmup: int, decay: int) -> optax.Schedule:
    """Rises linearly to `rate` over `warmup` updates, and then falls linearly to a tenth of it over
    `decay` updates; 0 switches either off."""
    # Counts from 1, because an update with the rate 0 would only cost time.
    rise = optax.linear_schedule(0.0, rate, max(warmup, 1))
    if not decay:
        return lambda count: rise(count + 1)
    fall = optax.linear_schedule(1.0, LEAST, decay, transition_begin=warmup)
    return lambda count: rise(count + 1) * fall(count)


class EventDecay(NamedTuple):
    """The state of `decay_from_event`.

    count: updates made. begins: the count from which on updates are reduced, or NEVER.
    """

    count: jax.Array
    begins: jax.Array


def decay_from_event(decay: int) -> optax.GradientTransformation:
    """Multiplies updates, which are proportional to their rate, by a factor that is 1 until
    `begin_decay`, and then falls linearly to a tenth over `decay` updates."""
    fall = _fall(decay)

    def init(params: optax.Params) -> EventDecay:
        del params
        return EventDecay(jnp.zeros((), jnp.int32), jnp.full((), NEVER, jnp.int32))

    def update(
        updates: optax.Updates, state: EventDecay, params: optax.Params | None = None
    ) -> tuple[optax.Updates, EventDecay]:
        del params
        factor = fall(jnp.maximum(state.count - state.begins, 0))
        scaled = jax.tree.map(lambda x: factor * x, updates)
        return scaled, EventDecay(optax.safe_increment(state.count), state.begins)

    return optax.GradientTransformation(init, update)


def _fall(decay: int) -> optax.Schedule:
    return optax.linear_schedule(1.0, LEAST, max(decay, 1))


def decayed(opt_state: optax.OptState, count: int, decay: int) -> jax.Array:
    """Returns the factor of `decay_from_event`, with whose state `opt_state` ends, on the update
    after `count` others."""
    return jnp.asarray(_fall(decay)(max(count - int(opt_state[-1].begins), 0)))


def begin_decay(opt_state: optax.OptState) -> optax.OptState:
    """Returns the state of an optimizer that ends with `decay_from_event`, whose rates fall from
    now on. A second call changes nothing."""
    *others, decay = opt_state
    assert isinstance(decay, EventDecay), type(decay)
    place = decay.count.sharding
    assert isinstance(place, NamedSharding), place
    everywhere = NamedSharding(place.mesh, PartitionSpec())
    return (*others, jax.jit(_from_now, out_shardings=everywhere)(decay))


def _from_now(decay: EventDecay) -> EventDecay:
    return decay._replace(begins=jnp.minimum(decay.begins, decay.count))
