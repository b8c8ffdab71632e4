"""A run's newest weights, out of its folder, in the form that others load."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ale_jax.model.lora import merged
from ale_jax.model.peft import save_peft
from ale_jax.model.weights.export import export
from ale_jax.system.newest_state import newest_state
from ale_jax.system.workdir import Workdir

if TYPE_CHECKING:
    from ale_jax.system.config import RunConfig


def export_run(config: RunConfig, workdir: Workdir, out: Path, adapter: bool) -> int:
    """Writes the newest whole checkpoint to the new folder `out`; returns its step.

    adapter: the adapters alone, for PEFT; else the weights, adapters merged, with configuration.
    The tokenizer and its chat template go along with either.

    Raises:
      ValueError: there is no checkpoint, the folder exists, transformers or PEFT cannot hold such
        a policy, or there are no adapters, or no weights to name beneath them.
    """
    if out.exists():
        raise ValueError(f"{out} exists: name a folder that does not")
    if adapter and not config.lora.rank:
        raise ValueError("there are no adapters in this run: leave out --adapter")
    if adapter and not config.weights:
        raise ValueError(
            "the adapters lie on random weights, which nobody else has: leave out --adapter"
        )
    step, state, _, tokenizer = newest_state(config, workdir.path)
    if adapter:
        save_peft(out, state.params, config.lora, config.weights)
        tokenizer.save(out)
    else:
        policy = config.policy_shape(tokenizer.vocab_size)
        export(out, merged(state.params), policy, tokenizer)
    return step
