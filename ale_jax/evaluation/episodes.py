"""episodes.jsonl: one line per finished episode of an evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ale_jax.files import MAX_LINE_BYTES, LineAppender, encode_line, read_lines
from ale_jax.status import Status

EPISODES_FILE = "episodes.jsonl"
LARGEST = 1e100  # of a number, so that the squares of all have a sum
MAX_FILE_BYTES = 16 << 30  # conversations are long, but few are kept in memory
Scalar = str | int | float | bool | None
ItemKey = tuple[str, str, str | int]  # world, family, item


@dataclasses.dataclass(frozen=True)
class EpisodeRecord:
    """One finished episode: sample `sample`, from 0, of an item of a world's family.

    reward: None if there was no verdict. rewards: its parts by name. metrics: what else the world
    tells by name. solved: whether the reward
    reached the world's `solved_at`. truncated: a limit ended the episode, and not the policy.
    metadata: columns of the item, by which results are grouped. messages: the conversation, with
    role and content; may be empty. world_digest: of the world's code and data; "" if unknown.
    prompt_tokens: that the policy was sent, over all its calls; None if nobody counted them.
    tools: that the world offered; replies have their calls as in `worlds.replies`.

    TypeError or ValueError, which names the field, if a value makes no sense.
    """

    world: str
    family: str
    item: str | int
    sample: int
    status: Status
    reward: float | None
    rewards: Mapping[str, float]
    solved: bool
    turns: int
    policy_tokens: int
    truncated: bool
    seconds: float
    metadata: Mapping[str, Scalar]
    messages: Sequence[Mapping[str, Any]]
    world_digest: str = ""
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)
    prompt_tokens: int | None = None
    tools: Sequence[Mapping[str, Any]] = ()

    def __post_init__(self) -> None:
        for name, is_valid in _VALID.items():
            if not is_valid(value := getattr(self, name)):
                raise ValueError(f"{name} is {value!r:.80}")
        if self.reward is None and self.solved:
            raise ValueError("solved is True, but there is no reward")

    @property
    def key(self) -> ItemKey:
        return self.world, self.family, self.item

    @property
    def judged(self) -> bool:
        """Whether there was a verdict."""
        return self.reward is not None

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> EpisodeRecord:
        tools = tuple(line.get("tools", ()))
        return cls(**{**line, "status": Status(line["status"]), "tools": tools})


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= LARGEST  # type: ignore[arg-type]


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _maps_names(to: Callable[[object], bool]) -> Callable[[object], bool]:
    def check(value: object) -> bool:
        return isinstance(value, Mapping) and all(
            isinstance(name, str) and to(each) for name, each in value.items()
        )

    return check


def _are_messages(value: object) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(each, Mapping) and isinstance(each.get("role"), str) for each in value
    )


_VALID: Mapping[str, Callable[[Any], bool]] = {
    "world": _is_text,
    "family": _is_text,
    "item": lambda value: isinstance(value, str | int) and not isinstance(value, bool),
    "sample": _is_count,
    "status": lambda value: isinstance(value, Status),
    "reward": lambda value: value is None or _is_number(value),
    "rewards": _maps_names(_is_number),
    "metrics": _maps_names(_is_number),
    "solved": _is_flag,
    "turns": _is_count,
    "policy_tokens": _is_count,
    "truncated": _is_flag,
    "seconds": lambda value: _is_number(value) and value >= 0,
    "metadata": _maps_names(
        lambda value: value is None or _is_text(value) or _is_flag(value) or _is_number(value)
    ),
    "messages": _are_messages,
    "world_digest": _is_text,
    "prompt_tokens": lambda value: value is None or _is_count(value),
    "tools": lambda value: all(isinstance(each, Mapping) for each in value),
}


@dataclasses.dataclass(frozen=True)
class Result:
    """The episodes of one evaluation. torn: lines that were left incomplete, 0 or 1, and that are
    not among them."""

    name: str
    episodes: tuple[EpisodeRecord, ...]
    torn: int = 0


class EpisodeWriter:
    """Appends to the episodes.jsonl of a folder; safe to share between threads. An incomplete last
    line is removed first. An episode whose line would be longer than readers accept is written
    without its messages, as its verdict counts more."""

    def __init__(self, folder: Path):
        self._lines = LineAppender(folder / EPISODES_FILE)

    def write(self, episode: EpisodeRecord) -> None:
        record = dataclasses.asdict(episode)
        if len(encode_line(record)) > MAX_LINE_BYTES:
            record["messages"] = ()
        self._lines.append(record)

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> EpisodeWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read_result(path: Path, name: str = "", messages: bool = False) -> Result:
    """Reads an evaluation's folder, or its file. name: what it is called, the path if empty.
    messages: whether to keep them, which may take gigabytes.

    ValueError, with file and line, if there is none, a line is damaged, or an episode stands there
    twice.
    """
    file = path / EPISODES_FILE if path.is_dir() else path
    if not file.is_file():
        raise ValueError(f"there is no {file}: name the folder of an evaluation, or its file")
    seen: set[tuple[ItemKey, int]] = set()

    def parse(line: dict[str, Any]) -> EpisodeRecord:
        episode = EpisodeRecord.from_json(line)
        if (place := (episode.key, episode.sample)) in seen:
            raise ValueError(f"sample {episode.sample} of {episode.key} is there already")
        seen.add(place)
        return episode if messages else dataclasses.replace(episode, messages=(), tools=())

    lines = read_lines(file, parse, MAX_FILE_BYTES)
    if not lines.records:
        raise ValueError(f"{file}: no finished episode")
    return Result(name or str(path), lines.records, int(lines.truncated_line is not None))
