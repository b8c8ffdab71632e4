"""The tools of a world, as the policy is offered them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

Tool = Mapping[str, Any]  # a function, as OpenAI's API describes it


@dataclasses.dataclass(frozen=True)
class Offer:
    """What the policy may call in an episode. must_call: each reply has to be a call."""

    tools: tuple[Tool, ...] = ()
    must_call: bool = False

    def fields(self) -> dict[str, Any]:
        """Returns the fields of a request that offers the tools; {} if there are none."""
        if not self.tools:
            return {}
        return {"tools": list(self.tools), "tool_choice": "required" if self.must_call else "auto"}


def checked_tools(given: Sequence[Any]) -> tuple[Tool, ...]:
    """Returns the tools of a world. ValueError, with the one, if they cannot be offered."""
    names: set[str] = set()
    for tool in given:
        match tool:
            case {"type": "function", "function": {"name": str(name), "parameters": Mapping()}}:
                if not name or name in names:
                    raise ValueError(f"tools: the name {name!r:.80} is empty or given twice")
                names.add(name)
            case _:
                raise ValueError(
                    f"tools: {tool!r:.200} must be {{'type': 'function', 'function': {{'name': "
                    "..., 'description': ..., 'parameters': a JSON schema}}"
                )
    return tuple(given)
