"""The newest weights of a run and their tokenizer, out of its folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ale_jax.learn.checkpoint import Checkpoints
from ale_jax.learn.state import TrainState, abstract_state, make_optimizer
from ale_jax.model.sharding import make_mesh
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.system.workdir import CHECKPOINTS_DIR

if TYPE_CHECKING:
    from ale_jax.system.config import RunConfig


def newest_state(config: RunConfig, path: Path) -> tuple[int, TrainState, ChatTokenizer]:
    """Step and state of the newest whole checkpoint of the run in `path`, and its tokenizer.

    Raises:
      ValueError: there is none.
    """
    folder = path / CHECKPOINTS_DIR
    if not any(folder.glob("*")):
        raise ValueError(f"there is no checkpoint in {folder}: go on with the run")
    tokenizer = ChatTokenizer.load(path / "tokenizer")
    policy, lora = config.policy_shape(tokenizer.vocab_size), config.lora
    optimizer = make_optimizer(config.rl_optimizer, policy, lora)
    target = abstract_state(policy, optimizer, make_mesh(config.mesh), lora)
    with Checkpoints(folder, config.checkpoint.keep, _say) as checkpoints:
        found = checkpoints.restore_latest(target)
    if found is None:
        raise ValueError(f"no checkpoint in {folder} is whole: go on with the run")
    step, state, _ = found
    return step, state, tokenizer


def _say(kind: str, detail: str, **_: str | int | float) -> None:
    print(f"{kind}: {detail}")
