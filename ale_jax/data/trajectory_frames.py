"""Trajectories as checksummed binary frames, restored bit for bit and without pickle.

    frame = MAGIC, length of the body, SHA-256 of the body, CRC-32 of these three; the body
    body  = length of the header; the header, as JSON; the bytes of all arrays, in order

The header holds the trajectory's plain fields, and dtype and shape of each array. The prefix has a
checksum of its own, so that a frame which was cut off can be told from one with a damaged length.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np

from ale_jax.config.engine import Sampling
from ale_jax.files import parse_json
from ale_jax.records import (
    FORCED,
    MAX_CUT_MASKS,
    MAX_MASKS,
    CallCounts,
    Episode,
    EpisodeKey,
    ReplyKind,
    SideBranch,
    Task,
    Trajectory,
    Turn,
)
from ale_jax.status import STATUS_RULES, Status

MAGIC = b"ALE1"
MAX_BODY_BYTES = 1 << 30
MAX_HEADER_BYTES = 64 << 20
MAX_TURNS = 1 << 16  # of all branches

_PREFIX = struct.Struct("<4sQ32s")
_CRC = struct.Struct("<I")
_HEADER_LENGTH = struct.Struct("<I")

# Of each turn, in this order.
_TURN_ARRAYS = {
    "prompt_ids": "<i4",
    "action_ids": "<i4",
    "logp_mu": "<f4",
    "logp_old": "<f4",
    "version": "<i4",
}
_MASK_ID = "<i2"  # of a turn that was held to a schema
_EXPERTS = "<i2"
_MASKS = "<i4"


class DamagedFrame(ValueError):
    """The bytes at a position are not a frame as it was written."""


def encode_frame(trajectory: Trajectory) -> bytes | None:
    """Returns the trajectory as one frame; None if it is larger than `read_frames` accepts."""
    branches = trajectory.branches
    arrays = [array for branch in branches for array in _arrays_of(branch)]
    if trajectory.mask_Iw is not None:
        arrays.append(_as(_MASKS, trajectory.mask_Iw))
    fields = {
        "episode": dataclasses.asdict(trajectory.episode),
        "start_version": trajectory.start_version,
        "rejected": list(trajectory.rejected),
        "calls": dataclasses.asdict(trajectory.calls),
        "branches": list(map(_branch_fields, branches)),
        "sampling": dataclasses.asdict(trajectory.sampling),
        "has_masks": trajectory.mask_Iw is not None,
        "arrays": [[array.dtype.str, array.shape] for array in arrays],
    }
    header = json.dumps(fields, allow_nan=False).encode()
    parts = [_HEADER_LENGTH.pack(len(header)), header, *(array.tobytes() for array in arrays)]
    length, turns = sum(map(len, parts)), sum(len(branch.turns) for branch in branches)
    if length > MAX_BODY_BYTES or len(header) > MAX_HEADER_BYTES or turns > MAX_TURNS:
        return None
    body = b"".join(parts)
    prefix = _PREFIX.pack(MAGIC, length, hashlib.sha256(body).digest())
    return prefix + _CRC.pack(zlib.crc32(prefix)) + body


def _arrays_of(branch: Trajectory | SideBranch) -> Iterator[np.ndarray]:
    for turn in branch.turns:
        for name, dtype in _TURN_ARRAYS.items():
            yield _as(dtype, getattr(turn, name))
        if turn.mask_id is not None:
            yield _as(_MASK_ID, turn.mask_id)
    if branch.expert_TLK is not None:
        yield _as(_EXPERTS, branch.expert_TLK)


def _as(dtype: str, array: np.ndarray) -> np.ndarray:
    return np.asarray(array).astype(dtype, casting="equiv", copy=False)


def _branch_fields(branch: Trajectory | SideBranch) -> dict[str, Any]:
    return {
        "num_prefix_turns": branch.num_prefix_turns,
        "turns": list(map(_turn_fields, branch.turns)),
        "has_experts": branch.expert_TLK is not None,
    }


def _turn_fields(turn: Turn) -> list[Any]:
    texts = [turn.prompt_text, turn.action_text]
    return [*texts, turn.reward, turn.kind, turn.number, turn.mask_id is not None]


def read_frames(file: IO[bytes]) -> Iterator[Trajectory]:
    """Yields the trajectories of a file that was only appended to.

    A last frame that was cut off, because the writer was killed, ends the reading.

    Raises:
      DamagedFrame: anything else is not as it was written.
    """
    size = _PREFIX.size + _CRC.size
    while len(start := file.read(size)) == size:
        prefix, (crc,) = start[: _PREFIX.size], _CRC.unpack(start[_PREFIX.size :])
        magic, length, digest = _PREFIX.unpack(prefix)
        if magic != MAGIC or crc != zlib.crc32(prefix) or length > MAX_BODY_BYTES:
            raise DamagedFrame("not the start of a frame")
        body = file.read(length)
        if len(body) < length:
            return
        if hashlib.sha256(body).digest() != digest:
            raise DamagedFrame("the checksum does not match")
        try:
            trajectory = _decode(body)
        # Another version of the program wrote it, or somebody who can compute a checksum.
        except (AssertionError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise DamagedFrame(f"not a trajectory ({error!r:.200})") from error
        yield trajectory


def _decode(body: bytes) -> Trajectory:
    (length,) = _unpack_length(body)
    _require(length <= MAX_HEADER_BYTES, "header length", length)
    start = _HEADER_LENGTH.size
    fields = parse_json(body[start : start + length])
    branches = fields["branches"]
    dtypes = [dtype for branch in branches for dtype in _dtypes(branch)]
    dtypes += [_MASKS] * bool(fields["has_masks"])
    _require(len(dtypes) <= MAX_TURNS * (len(_TURN_ARRAYS) + 2), "arrays", len(dtypes))
    arrays = iter(_arrays(body, start + length, fields["arrays"], dtypes))
    whole, *side = [_branch(branch, arrays) for branch in branches]
    trajectory = Trajectory(
        episode=episode_of(fields["episode"]),
        start_version=int(fields["start_version"]),
        rejected=tuple(map(Status, fields["rejected"])),
        calls=_calls(fields.get("calls", {})),
        side_branches=tuple(SideBranch(**each) for each in side),
        mask_Iw=next(arrays, None),
        # A frame without it is of a version that had this distribution in mind, whatever it drew
        # from: who reads compares it with the run's.
        sampling=Sampling(**fields.get("sampling", {})),
        **whole,
    )
    _check_masks(trajectory)
    return trajectory


def _dtypes(fields: Mapping[str, Any]) -> list[str]:
    """Returns the dtypes of the arrays of a branch, in order."""
    dtypes: list[str] = []
    for *_, has_masks in fields["turns"]:
        dtypes += [*_TURN_ARRAYS.values(), *[_MASK_ID] * bool(has_masks)]
    return dtypes + [_EXPERTS] * bool(fields["has_experts"])


def _branch(fields: Mapping[str, Any], arrays: Iterator[np.ndarray]) -> dict[str, Any]:
    """Restores what a `Trajectory` and a `SideBranch` have in common."""
    texts, num_prefix_turns = fields["turns"], int(fields["num_prefix_turns"])
    _require(0 <= num_prefix_turns <= len(texts), "prefix turns", num_prefix_turns)
    turns = tuple(_turn(text, arrays) for text in texts)
    expert_TLK = next(arrays) if fields["has_experts"] else None
    if expert_TLK is not None:
        tokens = sum(len(turn.prompt_ids) + len(turn.action_ids) for turn in turns)
        _require(expert_TLK.ndim == 3, "axes of the experts", expert_TLK.ndim)
        _require(len(expert_TLK) == tokens, "tokens with experts", len(expert_TLK))
    return {"turns": turns, "num_prefix_turns": num_prefix_turns, "expert_TLK": expert_TLK}


def _unpack_length(body: bytes) -> tuple[int]:
    _require(len(body) >= _HEADER_LENGTH.size, "body length", len(body))
    return _HEADER_LENGTH.unpack_from(body)


def _arrays(
    body: bytes, offset: int, table: Sequence[Sequence[Any]], dtypes: Sequence[str]
) -> list[np.ndarray]:
    """Copies of the arrays in `table`, which must have the given dtypes and fill the body."""
    _require([dtype for dtype, _ in table] == dtypes, "dtypes", len(table))
    arrays = []
    for dtype, shape in table:
        _require(len(shape) <= 3 and all(0 <= n <= MAX_BODY_BYTES for n in shape), "shape", shape)
        count = math.prod(shape)
        # ValueError if the body ends before the array does.
        array = np.frombuffer(body, dtype, count, offset).reshape(shape).copy()
        offset += array.nbytes
        arrays.append(array)
    _require(offset == len(body), "bytes after the arrays", len(body) - offset)
    return arrays


def _turn(text: Sequence[Any], arrays: Iterator[np.ndarray]) -> Turn:
    prompt_text, action_text, reward, *marks, has_masks = text
    kind, number = marks or (ReplyKind.ACTION, 0)  # journals of earlier versions have none
    own = {name: next(arrays) for name in _TURN_ARRAYS}
    if has_masks:
        own["mask_id"] = next(arrays)
    _require(isinstance(prompt_text, str) and isinstance(action_text, str), "texts", text)
    turn = Turn(
        **own,
        action_text=action_text,
        prompt_text=prompt_text,
        reward=float(reward),
        kind=ReplyKind(kind),
        number=int(number),
    )
    # One entry per sampled token in each of them.
    tokens = {len(array) for name, array in own.items() if name != "prompt_ids"}
    is_flat = all(array.ndim == 1 for array in own.values())
    _require(is_flat and len(tokens) == 1, "tokens", tokens)
    return turn


def _check_masks(trajectory: Trajectory) -> None:
    """Refuses a token that its mask does not allow: it cannot have been sampled."""
    mask_Iw = trajectory.mask_Iw
    held = [
        (turn.action_ids, turn.mask_id)
        for turn in trajectory.sampled_turns
        if turn.mask_id is not None
    ]
    if mask_Iw is None:
        _require(not held, "turns whose masks are missing", len(held))
        return
    most = MAX_CUT_MASKS if trajectory.sampling.cuts else MAX_MASKS
    _require(mask_Iw.ndim == 2 and len(mask_Iw) <= most, "masks", mask_Iw.shape)
    for action_ids, mask_id in held:
        known = (mask_id >= FORCED) & (mask_id < len(mask_Iw))
        _require(bool(known.all()), "numbers of masks", mask_id[~known])
        masked = mask_id >= 0
        word, bit = np.divmod(action_ids[masked], 32)
        _require(bool(((word >= 0) & (word < mask_Iw.shape[1])).all()), "tokens", word)
        allowed = mask_Iw[mask_id[masked], word] >> bit & 1
        _require(bool(allowed.all()), "tokens that were allowed", allowed)


def _calls(fields: Mapping[str, Any]) -> CallCounts:
    counts = {name: value for name, value in fields.items() if name != "unseen"}
    _require(all(type(count) is int for count in counts.values()), "counts of calls", counts)
    unseen = tuple(fields.get("unseen", ()))  # journals of earlier versions have none
    _require(all(isinstance(name, str) for name in unseen), "what was not shown", unseen)
    return CallCounts(**counts, unseen=unseen)


def episode_of(fields: Mapping[str, Any]) -> Episode:
    """Restores an episode from what `dataclasses.asdict` and JSON made of it. ValueError if its
    reward does not fit its status."""
    key, status, reward = fields["key"], Status(fields["status"]), fields["reward"]
    _require(isinstance(reward, float) == STATUS_RULES[status].reward_valid, "reward", reward)
    key = EpisodeKey(**key | {"task": Task(**key["task"])})
    earned = tuple(fields.get("step_rewards", ()))  # journals of earlier versions have none
    _require(all(isinstance(each, float) for each in earned), "step rewards", earned)
    _require(fields.get("solved_at", 1.0) > 0.0, "solved_at", fields.get("solved_at"))
    rewards, metrics = (
        tuple((str(name), float(value)) for name, value in fields.get(each, ()))
        for each in ("rewards", "metrics")
    )
    cut, told = fields.get("cut_replies", ()), fields.get("told", ())
    own = {
        "key": key,
        "status": status,
        "step_rewards": earned,
        "rewards": rewards,
        "metrics": metrics,
        "told": tuple((str(role), str(text), bool(failed)) for role, text, failed in told),
        "cut_replies": None if cut is None else tuple(map(int, cut)),
    }
    return Episode(**{**fields, **own})


def _require(holds: bool, what: str, found: Any) -> None:
    if not holds:
        raise ValueError(f"{what}: {found!r:.100}")
