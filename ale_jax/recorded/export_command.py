"""ale-jax export --episodes=FOLDER: episodes of evaluations in the formats of others."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from ale_jax.evaluation.episodes import EPISODES_FILE
from ale_jax.files import new_folder, write_json
from ale_jax.recorded.conversation import Conversation
from ale_jax.recorded.export import as_atif, as_messages
from ale_jax.recorded.files import records
from ale_jax.recorded.formats import conversation_of

MESSAGES, ATIF = "messages", "atif"


def export_episodes(source: Path, format: str, out: Path) -> int:
    """Writes the episodes of an evaluation, or of all evaluations of a run, into the folder `out`:
    as messages.jsonl, or each as a trajectory of ATIF. Returns their number.

    ValueError if there are none, one cannot be read, or `out` exists.
    """
    if format not in (MESSAGES, ATIF):
        raise ValueError(f"--format={format} is unknown: choose one of {MESSAGES}, {ATIF}")
    files = _files(source)
    if out.exists():
        raise ValueError(f"--out={out} exists: name a folder that does not exist yet")
    told = list(_conversations(files))
    with new_folder(out) as folder:  # warm_start.data would take a part of it for all
        _write(folder, format, told)
    return len(told)


def _write(folder: Path, format: str, told: Sequence[tuple[str, Conversation]]) -> None:
    if format == MESSAGES:
        with (folder / "messages.jsonl").open("w") as file:
            for _, conversation in told:
                file.write(json.dumps(as_messages(conversation)) + "\n")
        return
    for number, (place, conversation) in enumerate(told, 1):
        write_json(folder / f"trajectory_{number:06d}.json", as_atif(conversation, place))


def _files(source: Path) -> list[Path]:
    files = [source] if source.is_file() else sorted(source.rglob(EPISODES_FILE))
    if not files:
        raise ValueError(
            f"--episodes={source}: there is no {EPISODES_FILE}: name the folder of an evaluation "
            "or of a run"
        )
    return files


def _conversations(files: list[Path]) -> Iterator[tuple[str, Conversation]]:
    """Yields each conversation with a name of its own."""
    for file in files:
        for number, (place, record) in enumerate(records(file), 1):
            try:
                yield f"{file.parent.name}-{number}", conversation_of(record)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None
