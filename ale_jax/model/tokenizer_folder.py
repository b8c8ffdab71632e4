"""A tokenizer's files, and the chat templates that they have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ale_jax.model.tokenizer_library import transformers
from ale_jax.model.weights.gguf_tokenizer import read_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def read_folder(path: Path) -> PreTrainedTokenizerFast:
    """Reads the tokenizer of a folder, or of a .gguf file. ValueError if there is none, or it is
    damaged."""
    if not (path.is_file() or (path / "tokenizer.json").is_file()):
        raise ValueError(
            f"no tokenizer.json in {path}: give a folder that transformers can load, "
            "a .gguf file or a model's name, ORGANIZATION/NAME"
        )
    try:
        return _read(path)
    except Exception as error:  # a damaged file can raise any type of error
        raise ValueError(f"{path}: its tokenizer cannot be read: {error!s:.200}") from error


def _read(path: Path) -> PreTrainedTokenizerFast:
    if path.is_file():
        return read_tokenizer(path)
    found = transformers().AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    if not isinstance(found, transformers().PreTrainedTokenizerFast):
        raise ValueError("it is not written for the tokenizers library")
    return found


def named_templates(tokenizer: PreTrainedTokenizerFast) -> Mapping[str, str]:
    """Returns the chat templates by name, if there are several."""
    template = tokenizer.chat_template
    return template if isinstance(template, dict) else {}
