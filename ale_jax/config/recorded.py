"""Recorded conversations that a warm start learns from, and pairs of them that are preferred one to
the other."""

from __future__ import annotations

import dataclasses

from ale_jax.config.setting import Settings, setting

DROP, CUT = "drop", "cut"


@dataclasses.dataclass(frozen=True)
class DataFiles(Settings):
    """The files of a data set. LIST: the field of the config that holds it."""

    OWNER = "data "
    LIST = ""

    name: str = setting("", "what metrics and events call it.")
    files: str = setting(
        "",
        "its files, a pattern such as traj/*.jsonl; a relative one is looked for in "
        "`worlds.folder`.",
    )
    ratio: int = setting(
        1,
        "its records in every sum(ratios) of the sets that are learned together.",
        at_least=1,
        remedy="or leave it out",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("name", "files"):
            if not getattr(self, name):
                raise ValueError(
                    f"data has no {name}: give one, as in {{'name': 'agentic', 'files': "
                    "'traj/*.jsonl'}"
                )


@dataclasses.dataclass(frozen=True)
class RecordedData(DataFiles):
    """Conversations of some files, in any of the formats that `ale_jax.recorded.formats` reads."""

    LIST = "warm_start.data"

    min_reward: float = setting(
        0.0,
        "conversations that earned less are dropped; 0.0: none is, whatever it earned.",
        at_least=0.0,
        remedy="0.0 is off",
    )
    too_long: str = setting(
        DROP,
        "what becomes of conversations that do not fit learn.pack_length or chunks_per_pack: they "
        "are dropped, or cut behind the last reply that fits.",
        choices=(DROP, CUT),
    )


@dataclasses.dataclass(frozen=True)
class PreferenceData(DataFiles):
    """Pairs of some files, in the formats that `ale_jax.recorded.pairs` reads. A pair of which one
    does not fit learn.pack_length or chunks_per_pack is dropped."""

    LIST = "preferences.data"
