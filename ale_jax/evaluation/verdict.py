"""What a comparison ends with."""

from __future__ import annotations

import enum


class Verdict(enum.StrEnum):
    """How a result is beside the first."""

    BETTER = "better"
    WORSE = "worse"
    CANNOT_TELL = "cannot tell"
