"""The newest weights of a run and their tokenizer, out of its folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ale_jax.learn.checkpoint import Checkpoints
from ale_jax.learn.critics import abstract_critics
from ale_jax.learn.state import TrainState, WholeState, abstract_state, make_optimizer
from ale_jax.model.sharding import make_mesh
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.system.workdir import CHECKPOINTS_DIR

if TYPE_CHECKING:
    from ale_jax.system.config import RunConfig


class Newest(NamedTuple):
    """Of the newest whole checkpoint. host: the cursor, as it was saved."""

    step: int
    state: TrainState
    host: dict[str, Any]
    tokenizer: ChatTokenizer


def newest_state(config: RunConfig, path: Path) -> Newest:
    """What the run in `path`, which the caller has claimed, has come to.

    Raises:
      ValueError: there is none.
    """
    folder = path / CHECKPOINTS_DIR
    if not any(folder.glob("*")):
        raise ValueError(f"there is no checkpoint in {folder}: go on with the run")
    tokenizer = ChatTokenizer.load(path / "tokenizer")
    policy, lora = config.policy_shape(tokenizer.vocab_size), config.lora
    optimizer = make_optimizer(config.rl_optimizer, policy, lora)
    mesh = make_mesh(config.mesh)
    target = WholeState(
        abstract_state(policy, optimizer, mesh, lora),
        abstract_critics(config.critics, policy, mesh),
    )
    with Checkpoints(folder, config.checkpoint.keep, _say) as checkpoints:
        found = checkpoints.restore_latest(target)
    if found is None:
        raise ValueError(f"no checkpoint in {folder} is whole: go on with the run")
    step, state, host = found
    return Newest(step, state.policy, host, tokenizer)


def _say(kind: str, detail: str, **_: str | int | float) -> None:
    print(f"{kind}: {detail}")
