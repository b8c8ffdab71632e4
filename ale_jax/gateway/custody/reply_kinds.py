"""What became of the replies of an episode: which of them were carried out, as far as its calls
tell."""

from __future__ import annotations

from collections.abc import Sequence

from ale_jax.gateway.custody.token_tree import Call
from ale_jax.records import ReplyKind


def mark_replies(calls: Sequence[Call], cut_replies: Sequence[int] | None) -> None:
    """Numbers the calls, and says of which kind their replies are. calls: of an episode that has
    ended, in the order of their answers. cut_replies: as in `Episode`."""
    for number, call in enumerate(calls):
        call.number = number
        is_cut = _is_cut(call) if cut_replies is None else number in cut_replies
        call.kind = ReplyKind.CUT if is_cut else ReplyKind.ACTION


def _is_cut(call: Call) -> bool:
    """Whether the reply to an agent's program was cut before it was an action.

    Where tools are offered, an action is a call of one. Of an agent that reads its actions from the
    text, nobody here knows whether it has found one; but if the context was full, and nothing
    follows, nobody saw what it led to.
    """
    assert call.reply is not None, "only answered calls have replies"
    if call.stop == "stop" or call.reply.tool_calls:
        return False
    return call.has_tools or (call.stop == "context_full" and not call.children)
