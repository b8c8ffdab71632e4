"""The weights that training starts from, and the newest weights of a run with their tokenizer.

Training starts from random weights or from a checkpoint written elsewhere. The newest weights are
read from the run's folder, and exported as other libraries load them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import AbstractMesh, Mesh

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.run import RunConfig
from ale_jax.learn.checkpoint import Checkpoints
from ale_jax.learn.critics import abstract_critics
from ale_jax.learn.state import (
    TrainState,
    WholeState,
    abstract_state,
    begin,
    draw_weights,
    make_optimizer,
    with_new_adapters,
)
from ale_jax.learn.stored import abstract_digests, digests_of, restored, stored
from ale_jax.model.lora import entries, merged, trained, with_trained, without_adapters
from ale_jax.model.params import Params
from ale_jax.model.sharding import param_shardings
from ale_jax.model.sides import learner_mesh
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.model.weights.export import export
from ale_jax.model.weights.load import load_params, open_checkpoint
from ale_jax.model.weights.peft import save_peft
from ale_jax.model.weights.peft_reader import load_peft
from ale_jax.model.weights.shape import policy_shape
from ale_jax.monitor.run_files import CHECKPOINTS_DIR
from ale_jax.system.workdir import Workdir


class Newest(NamedTuple):
    """The contents of the newest complete checkpoint. host: the cursor as it was saved."""

    step: int
    state: TrainState
    host: dict[str, Any]
    tokenizer: ChatTokenizer


def newest_state(config: RunConfig, path: Path) -> Newest:
    """Reads the newest state of the run in `path`, which the caller has claimed.

    Raises:
      ValueError: there is none, or the weights beneath its adapters are not there any more.
    """
    found = newest_stored(config, path)
    if not config.lora.rank:
        return found
    mesh = learner_mesh(config)
    base = base_weights(config, policy_shape(config, found.tokenizer.vocab_size), mesh)
    state = restored(WholeState(found.state), base, digests_of(base, mesh)).policy
    return found._replace(state=state)


def newest_stored(config: RunConfig, path: Path) -> Newest:
    """As `newest_state`, but of adapters only what the checkpoint holds."""
    folder = path / CHECKPOINTS_DIR
    if not any(folder.glob("*")):
        raise ValueError(f"there is no checkpoint in {folder}: go on with the run")
    tokenizer = ChatTokenizer.load(path / "tokenizer")
    policy = policy_shape(config, tokenizer.vocab_size)
    with Checkpoints(folder, config.checkpoint.keep, _say) as checkpoints:
        found = checkpoints.restore_latest(abstract_whole(config, policy, learner_mesh(config)))
    if found is None:
        raise ValueError(f"no checkpoint in {folder} is complete: go on with the run")
    step, state, host = found
    return Newest(step, state.policy, host, tokenizer)


def abstract_whole(config: RunConfig, policy: PolicyShape, mesh: AbstractMesh | Mesh) -> WholeState:
    """Returns the shape, dtype and sharding of all that a checkpoint of the run holds."""
    optimizer = make_optimizer(config.rl_optimizer, policy, config.lora)
    whole = WholeState(
        abstract_state(policy, optimizer, mesh, config.lora),
        abstract_critics(config.critics, policy, mesh),
    )
    return stored(whole, abstract_digests(without_adapters(whole.policy.params), mesh))


def _say(kind: str, detail: str, **_: str | int | float) -> None:
    print(f"{kind}: {detail}")


def first_state(
    config: RunConfig, policy: PolicyShape, optimizer: optax.GradientTransformation, mesh: Mesh
) -> TrainState:
    """Returns the state at step 0. Errors: ValueError for a damaged checkpoint, or adapters that
    are not as the config says."""
    return begin(first_weights(config, policy, mesh), optimizer, mesh)


def first_weights(config: RunConfig, policy: PolicyShape, mesh: Mesh) -> Params:
    """Returns the weights of step 0, with the adapters of `config.lora`, new or as they start.
    Errors: as of `first_state`."""
    params = base_weights(config, policy, mesh)
    params = with_new_adapters(jax.random.key(config.seed), params, policy, config.lora, mesh)
    if not config.lora.start:
        return params
    adapters = load_peft(Path(config.lora.start), policy, config.lora)
    return with_trained(params, jax.tree.map(_placed, adapters, trained(params)))


def _placed(given: np.ndarray, as_there: jax.Array) -> jax.Array:
    """An array that every process has, on the devices of another one of its shape."""
    return jax.make_array_from_callback(given.shape, as_there.sharding, given.__getitem__)


def base_weights(config: RunConfig, policy: PolicyShape, mesh: Mesh) -> Params:
    """Returns the weights that training starts from, without adapters."""
    if config.weights:
        return given_weights(config, policy, mesh)
    return draw_weights(jax.random.key(config.seed), policy, mesh)


def given_weights(config: RunConfig, policy: PolicyShape, mesh: Mesh) -> Params:
    """Reads the weights of `config.weights`, sharded. Errors: ValueError for a damaged
    checkpoint."""
    places = param_shardings(policy, mesh)
    return load_params(open_checkpoint(config.weights), shardings=places)


def export_run(config: RunConfig, workdir: Workdir, out: Path, adapter: bool) -> int:
    """Writes the newest whole checkpoint to the new folder `out`; returns its step.

    adapter: writes the adapters alone, for PEFT; otherwise the weights, with adapters merged, and
    the configuration. The tokenizer and its chat template are written with either.

    Raises:
      ValueError: there is no checkpoint, the folder exists, transformers or PEFT cannot hold such
        a policy, or there are no adapters, or no folder of weights to name beneath them.
    """
    if out.exists():
        raise ValueError(f"{out} exists: name a folder that does not")
    if adapter:
        _check_adapters(config)
    if adapter:
        step, state, _, tokenizer = newest_stored(config, workdir.path)
        policy = policy_shape(config, tokenizer.vocab_size)
        save_peft(out, entries(state.params), policy, config.lora, config.weights, tokenizer)
        return step
    step, state, _, tokenizer = newest_state(config, workdir.path)
    export(out, merged(state.params), policy_shape(config, tokenizer.vocab_size), tokenizer)
    return step


def _check_adapters(config: RunConfig) -> None:
    """ValueError unless the run has adapters, and their base is a folder: PEFT's format has no
    place for the name of a .gguf file in one."""
    base = config.weights
    if not config.lora.rank:
        raise ValueError("there are no adapters in this run: leave out --adapter")
    if not base:
        raise ValueError(
            "the adapters lie on random weights, which nobody else has: leave out --adapter"
        )
    if Path(base).is_file() or Path(base).suffix == ".gguf":  # the file may be elsewhere by now
        raise ValueError(
            f"the adapters lie on {base}, and PEFT does not load a .gguf file: leave out "
            "--adapter, or train from the folder that "
            f"`python -m ale_jax.model.weights.convert {base} DIR` makes"
        )
