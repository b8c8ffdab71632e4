"""How a policy is served to clients."""

from __future__ import annotations

import dataclasses
import re

from ale_jax.config.engine import EngineShape
from ale_jax.config.model import DTYPES
from ale_jax.config.setting import Settings, setting

AUTO = "auto"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")


@dataclasses.dataclass(frozen=True)
class ServeConfig(Settings):
    """The sizes of the engine behind `serve`, in place of those in `engine` that are made for a
    run's many episodes: max_sequences, pages, and those of prefill. They suit a laptop.
    """

    max_sequences: int = setting(
        8,
        "conversations that are prefilled or decoded at once, in each shard of the mesh's data "
        "axes. There are pages for all of them at engine.max_sequence_length.",
        at_least=1,
    )
    prefill_tokens: tuple[int, ...] = setting(
        (32, 256), "prefill bucket sizes, as in engine.prefill_tokens."
    )
    compute_dtype: str = setting(
        AUTO,
        'type of matrix products; "auto": learn.compute_dtype, but float32 on CPUs, most of which '
        "compute bfloat16 more slowly.",
        choices=(AUTO, *DTYPES),
    )
    finish_seconds: float = setting(
        20.0,
        "how long calls in progress may take to finish after Ctrl-C or SIGTERM, before they are "
        "answered with 503.",
        at_least=0.0,
        at_most=3600.0,
        remedy="it is in seconds",
    )
    adapters: tuple[str, ...] = setting(
        (),
        "adapters that are served beside the policy, each as NAME=FOLDER in PEFT's format. Clients "
        "choose one as their model, by its name.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = self.prefill_tokens
        if not sizes or sorted(sizes) != list(sizes) or sizes[0] < 1:
            raise ValueError(f"prefill_tokens {sizes} must be numbers from 1, in ascending order")
        names = [name for name, _ in map(_named, self.adapters)]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"adapters {name!r} is there twice: each needs a name of its own")

    @property
    def folders(self) -> dict[str, str]:
        """The folders of the adapters by their names."""
        return dict(map(_named, self.adapters))

    def engine(self, engine: EngineShape, shards: int) -> EngineShape:
        """Returns the sizes of the engine. shards: of the mesh's data axes."""
        count = self.max_sequences * shards
        return dataclasses.replace(
            engine,
            max_sequences=count,
            pages=count * engine.pages_per_sequence,
            prefill_tokens=self.prefill_tokens,
            prefill_rows=1,
            prefill_budget=2 * self.prefill_tokens[-1],
        )


def _named(entry: str) -> tuple[str, str]:
    name, _, folder = entry.partition("=")
    if not (_NAME.fullmatch(name) and folder):
        raise ValueError(
            f"adapters {entry!r:.80} must be NAME=FOLDER, the name of up to 64 letters, digits and "
            "any of ._:-"
        )
    return name, folder
