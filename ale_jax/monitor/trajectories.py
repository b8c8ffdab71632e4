"""trajectories.jsonl: some trajectories of each step, with the credit of their chunks. Also chooses
the episodes that the report shows turn by turn.

The credit of a token is what the gradient of its log-probability was multiplied by in the step that
trained on it: -Z dL / d log pi, where Z is the loss denominator. This is the product of advantage,
`negative_weight`, ratio or its bound, and mask, plus what a divergence or a penalty on the ratio
adds. An entropy bonus is not part of it, because it does not act through the log-probability of the
sampled token. The credit of a chunk is the mean over its tokens.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ale_jax.files import LineAppender, Lines, encode_line, read_lines, write_atomically
from ale_jax.monitor.text import clip
from ale_jax.status import Status

TRAJECTORIES_FILE = "trajectories.jsonl"
MAX_TEXT_CHARS = 6000
MAX_TURNS = 256
MAX_TOKENS = 16384  # of a sample; longer ones are stored without their tokens


@dataclasses.dataclass(frozen=True)
class ChunkTokens:
    """A chunk token by token. Log-probabilities are natural logarithms.

    prompt_ids: the ids between the last chunk and this one. action_ids: the ids that the policy
    wrote; the other fields have one value for each of them.
    logp_mu: under the sampler. logp_old: under pi_old, as the loss used it. version: of the weights
    that wrote the token. advantage: as the estimator gave it.
    Only of tokens that were trained on, otherwise None: logp, under the weights that the step
    started from, and credit.
    """

    prompt_ids: tuple[int, ...]
    action_ids: tuple[int, ...]
    logp_mu: tuple[float, ...]
    logp_old: tuple[float, ...]
    version: tuple[int, ...]
    advantage: tuple[float, ...]
    logp: tuple[float, ...] | None
    credit: tuple[float, ...] | None

    def __post_init__(self) -> None:
        values = {name: getattr(self, name) for name in _PER_TOKEN}
        lengths = {name: len(each) for name, each in values.items() if each is not None}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"a chunk's tokens differ in number: {lengths}")


OF_TRAINED = ("logp", "credit")
_PER_TOKEN = ("action_ids", "logp_mu", "logp_old", "version", "advantage", *OF_TRAINED)


@dataclasses.dataclass(frozen=True)
class TurnSample:
    """One chunk as the learner saw it.

    prompt: the text between the last chunk and this one. action: what the policy wrote.
    advantage: mean over its tokens, as the estimator gave it.
    kept: False if the mismatch filter removed the whole chunk from the loss.
    tokens: policy tokens of the chunk. reward: what its step earned.
    Only of a chunk that was trained on, otherwise None: credit, see above; ratio, the geometric
    mean of pi / pi_old over its tokens; logp_mean, their mean log-probability, natural log.
    each: the chunk token by token; None in a trajectory of more than MAX_TOKENS.
    """

    prompt: str
    action: str
    advantage: float
    kept: bool
    tokens: int
    credit: float | None
    ratio: float | None
    logp_mean: float | None
    reward: float = 0.0
    each: ChunkTokens | None = None

    @property
    def masked(self) -> bool:
        return self.credit is not None and not self.kept


@dataclasses.dataclass(frozen=True)
class TrajectorySample:
    """A trajectory of a step's groups. Versions count updates of the weights.

    Samples of one step with the same family and item are attempts of one group at one task. The
    first `num_prefix_turns` turns were written by an expert, and the episode began after them.
    """

    step: int
    family: str
    item: int | str
    status: Status
    reward: float
    solved: bool
    start_version: int
    trained_version: int
    turns: tuple[TurnSample, ...]
    num_prefix_turns: int = 0

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the turns that are stored token by token."""
        known = [turn.each for turn in self.turns if turn.each is not None]
        return sum(len(each.prompt_ids) + len(each.action_ids) for each in known)

    @property
    def trained_on(self) -> bool:
        return any(turn.credit is not None for turn in self.turns)

    @property
    def staleness(self) -> int:
        return self.trained_version - self.start_version


class TrajectoryWriter:
    """Appends samples. In texts longer than MAX_TEXT_CHARS a note replaces the middle."""

    def __init__(self, workdir: Path, resume_step: int | None = None):
        """Opens the log. With `resume_step`, samples of later steps are removed first."""
        path = Path(workdir) / TRAJECTORIES_FILE
        if resume_step is not None and path.exists():
            kept = [s for s in read_trajectories(path).records if s.step <= resume_step]
            write_atomically(path, (encode_line(dataclasses.asdict(s)) for s in kept))
        self._lines = LineAppender(path)

    def write(self, sample: TrajectorySample) -> None:
        """Writes one sample. A sample with more than MAX_TURNS turns is skipped, and so is one that
        would make a line or the file too large to be read, because a record that cannot be written
        is no reason to stop the training. ValueError if a number is not finite."""
        if len(sample.turns) > MAX_TURNS:
            return
        each = sample.num_tokens <= MAX_TOKENS
        turns = tuple(_capped(turn, each) for turn in sample.turns)
        capped = dataclasses.replace(sample, turns=turns)
        self._lines.append_if_readable(dataclasses.asdict(capped))

    def close(self) -> None:
        self._lines.close()

    def __enter__(self) -> TrajectoryWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read_trajectories(path: Path) -> Lines[TrajectorySample]:
    """Returns the samples of a trajectories.jsonl; see `files.read_lines` for what is tolerated."""
    return read_lines(Path(path), _parse_sample)


def _capped(turn: TurnSample, each: bool) -> TurnSample:
    return dataclasses.replace(
        turn,
        prompt=clip(turn.prompt, MAX_TEXT_CHARS),
        action=clip(turn.action, MAX_TEXT_CHARS),
        each=turn.each if each else None,
    )


def _parse_sample(line: dict[str, Any]) -> TrajectorySample:
    turns, prefix = line["turns"][:MAX_TURNS], int(line.get("num_prefix_turns", 0))
    if not 0 <= prefix <= len(turns):
        raise ValueError(f"{prefix} prefix turns of {len(turns)}")
    return TrajectorySample(
        step=int(line["step"]),
        family=str(line["family"]),
        item=_item(line["item"]),
        status=Status(line["status"]),
        reward=float(line["reward"]),
        solved=bool(line["solved"]),
        start_version=int(line["start_version"]),
        trained_version=int(line["trained_version"]),
        turns=tuple(map(_parse_turn, turns)),
        num_prefix_turns=prefix,
    )


def _parse_turn(turn: dict[str, Any]) -> TurnSample:
    return TurnSample(
        prompt=str(turn["prompt"]),
        action=str(turn["action"]),
        advantage=float(turn["advantage"]),
        kept=bool(turn["kept"]),
        tokens=int(turn["tokens"]),
        credit=_number_or_none(turn["credit"]),
        ratio=_number_or_none(turn["ratio"]),
        logp_mean=_number_or_none(turn["logp_mean"]),
        reward=float(turn["reward"]),
        each=None if turn.get("each") is None else _parse_tokens(turn["each"]),
    )


def _parse_tokens(each: dict[str, Any]) -> ChunkTokens:
    def ints(name: str) -> tuple[int, ...]:
        return tuple(map(int, each[name]))

    def floats(name: str) -> tuple[float, ...]:
        return tuple(map(float, each[name]))

    return ChunkTokens(
        prompt_ids=ints("prompt_ids"),
        action_ids=ints("action_ids"),
        logp_mu=floats("logp_mu"),
        logp_old=floats("logp_old"),
        version=ints("version"),
        advantage=floats("advantage"),
        logp=None if each["logp"] is None else floats("logp"),
        credit=None if each["credit"] is None else floats("credit"),
    )


def _number_or_none(value: Any) -> float | None:
    return None if value is None else float(value)


MAX_EPISODES = 4
# A stronger tint would leave too little contrast with the text on it.
MAX_TINT = 34.0


@dataclasses.dataclass(frozen=True)
class TurnView:
    """A turn as it is shown. sign: of the credit: "positive", "negative", "zero" or "untrained".
    tint: strength of its colour, in percent. width: share of the policy's tokens, in percent."""

    turn: TurnSample
    sign: str
    tint: float
    width: float


@dataclasses.dataclass(frozen=True)
class EpisodeView:
    """An episode as it is shown."""

    sample: TrajectorySample
    turns: tuple[TurnView, ...]


def episode_views(samples: Sequence[TrajectorySample]) -> list[EpisodeView]:
    """Returns the episodes to show. The first two are a success and a failure at the same task, if
    there are such."""
    chosen = choose(samples)
    largest = max((abs(t.credit or 0.0) for s in chosen for t in s.turns), default=0.0)
    return [EpisodeView(s, tuple(_turn_view(t, s, largest) for t in s.turns)) for s in chosen]


def choose(samples: Sequence[TrajectorySample]) -> list[TrajectorySample]:
    """Returns a success and a failure of the latest group that has both, and then the latest
    samples of other families. If no group has both: the latest success and the latest failure."""
    chosen = _contrast(samples)
    families = {sample.family for sample in chosen}
    for sample in reversed(samples):
        if len(chosen) >= MAX_EPISODES:
            break
        if sample.family not in families:
            chosen.append(sample)
            families.add(sample.family)
    return chosen


def _contrast(samples: Sequence[TrajectorySample]) -> list[TrajectorySample]:
    groups = collections.defaultdict(list)
    for sample in samples:
        groups[sample.step, sample.family, sample.item].append(sample)
    # Groups with more than one turn are preferred, because they show more about credit.
    by_interest = sorted(groups.values(), key=lambda g: (len(g[0].turns) > 1, g[0].step))
    for group in (*reversed(by_interest), samples):
        successes = [s for s in group if s.solved]
        failures = [s for s in group if not s.solved]
        if successes and failures:
            return [successes[-1], failures[-1]]
    return list(samples[-1:])


def _turn_view(turn: TurnSample, sample: TrajectorySample, largest: float) -> TurnView:
    tokens = sum(t.tokens for t in sample.turns)
    strength = abs(turn.credit or 0.0) / largest if largest else 0.0
    return TurnView(
        turn=turn,
        sign=_sign(turn.credit),
        tint=round(MAX_TINT * strength, 1),
        width=round(100 * turn.tokens / tokens, 2) if tokens else 0.0,
    )


def _sign(credit: float | None) -> str:
    if credit is None:
        return "untrained"
    return "positive" if credit > 0 else "negative" if credit < 0 else "zero"


def _item(given: Any) -> int | str:
    if not isinstance(given, int | str):
        raise TypeError(f"item {given!r:.80} is no name")
    return given
