"""What the requests of all APIs have in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator

MAX_EFFORT = 64  # letters of a word for it
MAX_TOOLS = 1024  # agents with servers of tools offer hundreds


class Fields(BaseModel):
    """A part of a request. Fields that are not listed are ignored, as clients send those of other
    services, too. A field that is null is left to its default, as some clients write all out."""

    model_config = ConfigDict(extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any) -> Any:
        if not isinstance(fields, dict) or None not in fields.values():
            return fields
        return {name: value for name, value in fields.items() if value is not None}


def not_text(what: str, unseen: list[str]) -> str:
    """Returns the text that stands for content which is none, such as an image. unseen: where its
    name is added to what the policy is not shown."""
    unseen.append(what)
    return f"[{what} left out: this model reads text only]"
