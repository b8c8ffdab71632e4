"""What became of the replies of an episode: which of them were carried out, as far as its calls
tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ale_jax.gateway.custody.calls import Call
from ale_jax.gateway.json_values import value_or_text
from ale_jax.gateway.messages import ChatMessage
from ale_jax.records import ReplyKind
from ale_jax.status import Status

CONTEXT_FULL = "context_full"  # of what the engine sampled: how it stopped
WORKED = (ReplyKind.ACTION, ReplyKind.CUT)  # neither given up by the agent, nor on the side


def mark_replies(calls: Sequence[Call], cut_replies: Sequence[int] | None) -> None:
    """Numbers the calls, and says of which kind their replies are. calls: of an episode that has
    ended, in the order of their answers. cut_replies: as in `Episode`."""
    for number, call in enumerate(calls):
        call.number = number
    if cut_replies is not None:  # our own loop has one conversation, and knows what it carried out
        for number in cut_replies:
            if calls[number].stop == CONTEXT_FULL:
                calls[number].kind = ReplyKind.CUT
        return
    # The surest reason comes last, and counts.
    for call in _side_calls(calls):
        call.kind = ReplyKind.SIDE
    for call in _replaced(calls):
        call.kind = ReplyKind.REPLACED
    for call in filter(_is_cut, calls):
        call.kind = ReplyKind.CUT


def cut_at(calls: Sequence[Call]) -> Status | None:
    """Returns the limit at which the last reply of an agent's program was cut, of those that worked
    on the task; None if it was whole, or has a call that could be read. calls: marked."""
    last = next((call for call in reversed(calls) if call.kind in WORKED), None)
    if last is None or _reply(last).tool_calls:
        return None
    return {"length": Status.REPLY_LIMIT, CONTEXT_FULL: Status.TOKEN_LIMIT}.get(last.stop)


def _is_cut(call: Call) -> bool:
    """Whether the reply to an agent's program was cut before it was an action.

    If the context was full, no call could be read, and nothing follows, nobody saw what it led to.
    A reply that was cut at its own limit is answered by the agent, and earns what that leads to.
    """
    return call.stop == CONTEXT_FULL and not _reply(call).tool_calls and not call.children


def _replaced(calls: Sequence[Call]) -> Iterator[Call]:
    """The calls whose replies nothing continues, and whose prompts the agent went on from in
    another way: it asked again, it continued another one of several replies that it had asked for
    at once, or it put other words in the place of the reply."""
    same_prompt: dict[bytes, list[Call]] = defaultdict(list)
    retold: dict[bytes, list[tuple[Call, ChatMessage]]] = defaultdict(list)
    for call in calls:
        same_prompt[call.start].append(call)
        for prompt, told in call.retold:
            retold[prompt].append((call, told))
    for call in calls:
        if call.children:
            continue
        if call.abandoned:  # its place was taken by a retry, whichever ended first
            yield call
            continue
        others = (other for other in same_prompt[call.start] if other is not call)
        later = ((other, told) for other, told in retold[call.start] if other.begun > call.ended)
        if any(_takes_the_place(other, call) for other in others) or any(
            not _retells(told, _reply(call)) for _, told in later
        ):
            yield call


def _takes_the_place(other: Call, call: Call) -> bool:
    """Whether the other call, with the same prompt, came after this one, or was made at once with
    it and chosen."""
    at_once = call.begun < other.ended
    return other.begun > call.ended or (at_once and other.children > 0)


def _retells(told: ChatMessage, reply: ChatMessage) -> bool:
    """Whether a message of the agent says what the policy replied, if in another form. Where it
    does not, the reply was not what the agent carried out."""
    if told.tool_calls:
        return _actions(told) == _actions(reply)
    if reply.tool_calls:
        return all(call.name in told.content for call in reply.tool_calls)
    said, replied = (" ".join(each.content.split()) for each in (told, reply))
    return bool(said and replied) and (said in replied or replied in said)


def _actions(message: ChatMessage) -> list[tuple[str, object]]:
    return [(call.name, value_or_text(call.arguments)) for call in message.tool_calls]


def _side_calls(calls: Sequence[Call]) -> Iterator[Call]:
    """The calls without tools in an episode that has tools, whose replies, and those of the calls
    that continue them, are in no later message."""
    if not any(call.has_tools for call in calls):
        return
    of_use: set[Call] = set()
    for call in reversed(calls):
        if call in of_use or call.has_tools or _is_read(call, calls):
            if call.parent is not None:
                of_use.add(call.parent)
        else:
            yield call


def _is_read(call: Call, calls: Sequence[Call]) -> bool:
    """Whether a later call tells the reply to somebody, such as the summary of a conversation."""
    text = _reply(call).content.strip()
    later = (message for other in calls if other.begun > call.ended for message in other.messages)
    return bool(text) and any(text in message.content for message in later)


def _reply(call: Call) -> ChatMessage:
    assert call.reply is not None, "only answered calls have replies"
    return call.reply
