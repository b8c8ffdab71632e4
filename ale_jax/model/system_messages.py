"""System messages behind the first one, for chat templates that have no place for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SYSTEM, USER = "system", "user"
BETWEEN = "\n\n"


def folded(messages: Sequence[Mapping[str, Any]], first: bool) -> list[Mapping[str, Any]]:
    """Returns the messages, in which a system message is a part of its neighbour: of what comes
    before it, or, where that is the policy's, of what the user says next.

    first: whether the conversation begins here, so that a first system message may stay.

    Example:
        >>> told = [("system", "A"), ("user", "B"), ("system", "C"), ("user", "D")]
        >>> told = [{"role": role, "content": text} for role, text in told]
        >>> [(each["role"], each["content"]) for each in folded(told, first=True)]
        [('system', 'A'), ('user', 'B\\n\\nC'), ('user', 'D')]
        >>> [(each["role"], each["content"]) for each in folded(told[2:], first=False)]
        [('user', 'C\\n\\nD')]
    """
    found: list[Mapping[str, Any]] = []
    is_open = False  # whether the last one waits for what the user says
    for message in messages:
        is_system = message["role"] == SYSTEM
        if is_system and first and not found:
            found.append(message)
        elif found and ((is_system and found[-1]["role"] != "assistant") or is_open):
            found[-1] = _joined(found[-1], message)
        elif is_system:
            found.append({**message, "role": USER})
            is_open = True
            continue
        else:
            found.append(message)
        is_open = is_open and is_system
    return found


def _joined(before: Mapping[str, Any], after: Mapping[str, Any]) -> Mapping[str, Any]:
    texts = filter(None, (before["content"], after["content"]))
    return {**before, "content": BETWEEN.join(texts)}
