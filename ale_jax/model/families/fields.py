"""The fields of a configuration that is not ours: read with their types checked, and all of them.

A field that no reader asked for, and that is not known to be of no consequence, would be a part of
the model that is silently missing. `Fields.refuse_rest` names it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# Of no consequence for what a policy computes, beside the fields that all configurations have:
# token ids (those of the tokenizer count), and what only acts in the training of others.
HARMLESS = frozenset(
    (
        *("auto_map", "torch_dtype", "tokenizer_class", "use_cache", "initializer_range"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id"),
        *("attention_dropout", "hidden_dropout", "residual_dropout", "resid_pdrop", "embd_pdrop"),
        *("output_router_logits", "router_aux_loss_coef", "router_z_loss_coef"),
        *("router_jitter_noise", "attn_implementation", "cache_implementation", "unsloth_fixed"),
        # The parts of positions that text has in common.
        *("mrope_section", "mrope_interleaved"),
    )
)

# What some models' own code reads, with the value that says of a model that it does not have it.
NEUTRAL = {
    "attention_bias": False,
    "mlp_bias": False,
    "lm_head_bias": False,
    "use_mrope": False,
    "use_sliding_window": False,
    "full_attn_mod": 1,
    "interpolate_factor": 1,
}


@dataclasses.dataclass(frozen=True)
class Fields:
    """The fields of a file, by name. A field that is null counts as missing, as in transformers.

    taken: the names that have been asked for so far, or that are of no consequence.
    """

    source: Path | str
    values: Mapping[str, Any]
    taken: set[str] = dataclasses.field(default_factory=set)

    def error(self, text: str) -> ValueError:
        return ValueError(f"{self.source}: {text}")

    def get(self, name: str, default: Any = None) -> Any:
        self.taken.add(name)
        value = self.values.get(name)
        return default if value is None else value

    def require(self, name: str, only: Any) -> None:
        """Raises ValueError if the field is present with a value other than the one that is
        supported."""
        if self.get(name, only) != only:
            raise self.error(f"{name} {self.get(name)!r:.80} is not supported, only {only!r} is")

    def count(self, name: str, default: int | None = None, most: int = 1 << 24) -> int:
        """Returns an integer from 1 to `most`, a limit that keeps a damaged file from exhausting
        the memory.

        ValueError if it is something else, or missing without a default.
        """
        value = self._given(name, default)
        if type(value) is not int or not 1 <= value <= most:
            raise self.error(f"{name} {value!r:.40} must be an integer from 1 to {most}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a number > 0. ValueError if it is something else, or missing without a
        default."""
        value = self._given(name, default)
        if type(value) not in (int, float) or not 0 < value < float("inf"):
            raise self.error(f"{name} {value!r:.40} must be a number above 0")
        return float(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._given(name, default)
        if type(value) is not bool:
            raise self.error(f"{name} {value!r:.40} must be true or false")
        return value

    def items(self, name: str) -> list[Any]:
        """Returns the items of a list; empty if it is missing."""
        value = self.get(name, [])
        if not isinstance(value, list):
            raise self.error(f"{name} {value!r:.40} must be a list")
        return value

    def part(self, name: str) -> Fields:
        """Returns the fields of a nested object; none if it is missing."""
        value = self.get(name, {})
        if not isinstance(value, Mapping):
            raise self.error(f"{name} {value!r:.40} must be an object")
        return Fields(self.source, value)

    def refuse_rest(self) -> None:
        """Raises ValueError if there is a field that nobody has asked for."""
        for name, value in self.values.items():
            is_neutral = name in NEUTRAL and value == NEUTRAL[name]
            if value is not None and not is_neutral and name not in self.taken | HARMLESS:
                raise self.error(f"{name} {value!r:.60} is not supported: nothing here reads it")

    def _given(self, name: str, default: Any) -> Any:
        value = self.get(name, default)
        if value is None:
            raise self.error(f"{name} is missing")
        return value
