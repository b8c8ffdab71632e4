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
# Of no consequence for which replies are drawn: ids (those that end replies come with the
# tokenizer), how long a reply may be (a request says it), what is returned, and what only makes it
# faster.
HARMLESS = frozenset(
    (
        *("do_sample", "bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id"),
        *("max_length", "max_new_tokens", "transformers_version", "trust_remote_code"),
        *("use_cache", "cache_implementation", "cache_config", "return_dict_in_generate"),
        *("output_attentions", "output_hidden_states", "output_scores", "output_logits"),
        *("num_assistant_tokens", "num_assistant_tokens_schedule", "prompt_lookup_num_tokens"),
        *("assistant_confidence_threshold", "is_assistant", "compile_config", "disable_compile"),
        # With one beam, and with finite logits, these do nothing.
        *("early_stopping", "length_penalty", "renormalize_logits", "remove_invalid_values"),
    )
)
# The values with which other fields change nothing, beside null, false and what is empty.
NEUTRAL = {
    **dict.fromkeys(("repetition_penalty", "encoder_repetition_penalty", "typical_p"), 1),
    **dict.fromkeys(("num_beams", "num_beam_groups", "num_return_sequences", "guidance_scale"), 1),
}


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
    is_drawn = found.get("do_sample")
    if is_drawn not in (None, True, False):
        raise ValueError(f"{folder / FILE}: do_sample {is_drawn!r:.40} must be true or false")
    if is_drawn is False:
        asked = {"temperature": 0.0}
    try:
        sampling = Sampling(**asked)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{folder / FILE}: {error}") from error
    left = tuple(
        f"{name} {value!r:.60}"
        for name, value in found.items()
        if not (name in (*FIELDS, *HARMLESS) or name.startswith("_") or _is_neutral(name, value))
    )
    return Defaults(sampling, FILE, left) if asked or left else own


def _is_neutral(name: str, value: Any) -> bool:
    """Whether a field with this value changes no distribution."""
    return not value or (name in NEUTRAL and value == NEUTRAL[name])


def _read(path: Path) -> dict[str, Any]:
    try:
        found, rest = read_json(path.read_text().strip())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error!s:.200}") from error
    if rest or not isinstance(found, dict):
        raise ValueError(f"{path} must have one JSON object")
    return found
