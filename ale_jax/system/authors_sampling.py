"""How the authors of a model want its replies sampled, where neither config nor request say."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ale_jax.config.engine import Sampling
from ale_jax.config.run import RunConfig
from ale_jax.model.weights.hub import locate
from ale_jax.strict_json import read_json

FILE = "generation_config.json"
FIELDS = ("temperature", "top_k", "top_p", "min_p")
# What changes the distribution, too, and is not applied; and the value that changes nothing.
NOT_APPLIED = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "typical_p": 1.0}


@dataclasses.dataclass(frozen=True)
class Defaults:
    """How replies are sampled unless a request says otherwise. source: who says so. not_applied:
    what the authors' file asks for beside that, as text."""

    sampling: Sampling
    source: str
    not_applied: tuple[str, ...] = ()

    def __str__(self) -> str:
        values = dataclasses.asdict(self.sampling).items()
        told = ", ".join(f"{name} {value}" for name, value in values)
        left = f" ({', '.join(self.not_applied)} is not applied)" if self.not_applied else ""
        return f"{told}, as {self.source} says{left}"


def serving_defaults(config: RunConfig) -> Defaults:
    """Returns how weights that are given are sampled: as the config says, if that is not the
    default, or else as the file of the model's authors. ValueError if that makes no sense."""
    own = Defaults(config.eval_sampling, "config.eval_sampling")
    folder = locate(config.weights, weights=False)
    if config.eval_sampling != Sampling() or not (folder / FILE).is_file():
        return own
    found = _read(folder / FILE)
    asked = {name: found[name] for name in FIELDS if found.get(name) is not None}
    if found.get("do_sample") is False:
        asked = {"temperature": 0.0}
    try:
        sampling = Sampling(**asked)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{folder / FILE}: {error}") from error
    others = ((name, found.get(name), plain) for name, plain in NOT_APPLIED.items())
    left = tuple(f"{name} {value}" for name, value, plain in others if value not in (None, plain))
    return Defaults(sampling, FILE, left) if asked or left else own


def _read(path: Path) -> dict[str, Any]:
    try:
        found, rest = read_json(path.read_text().strip())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error!s:.200}") from error
    if rest or not isinstance(found, dict):
        raise ValueError(f"{path} must have one JSON object")
    return found
