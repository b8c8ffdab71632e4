"""An update on the learner's devices and those that engines lend it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from ale_jax.config.hardware import MeshShape
from ale_jax.config.run import RunConfig
from ale_jax.learn.state import TrainState, abstract_state
from ale_jax.learn.step import LossFn, Metrics, ModelSpec, make_train_step
from ale_jax.model.sharding import dispatching, make_mesh
from ale_jax.system.lending import borrowing_mesh


class BorrowedStep:
    """A `TrainStep` that moves the state over all of these devices, and back. It differs from one
    on the learner's devices alone in the order of sums."""

    def __init__(
        self,
        config: RunConfig,
        model: ModelSpec,
        lent: Sequence[Mesh],
        optimizer: optax.GradientTransformation,
        loss: LossFn,
    ):
        """model: on the learner's mesh. lent: meshes of the engines. Errors: as of
        `borrowing_mesh`."""
        sizes = borrowing_mesh(config, model.mesh.shape).shape
        devices = [device for each in (model.mesh, *lent) for device in each.devices.flat]
        self._mesh = make_mesh(MeshShape(**sizes), devices)
        self._step = make_train_step(dataclasses.replace(model, mesh=self._mesh), optimizer, loss)
        self._over, self._back = (
            jax.tree.map(
                lambda x: x.sharding, abstract_state(model.shape, optimizer, mesh, model.lora)
            )
            for mesh in (self._mesh, model.mesh)
        )

    def __call__(
        self, state: TrainState, batches: Sequence[Any], loss_denominator: np.float32
    ) -> tuple[TrainState, Metrics, list[Any]]:
        with dispatching(self._mesh):
            state = jax.device_put(state, self._over)
            state, sums, tokens = self._step(state, batches, loss_denominator)
            return jax.device_put(state, self._back), sums, tokens
