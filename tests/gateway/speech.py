"""A format of messages for tests, which can be read back, and a policy whose tokens are its
letters or pairs of them."""

import dataclasses

import numpy as np

from ale_jax.gateway.messages import ChatMessage

OPEN, CLOSE = {"system": 1, "user": 2, "tool": 3, "assistant": 4}, 5
LETTER, PAIR = 1000, 100_000


@dataclasses.dataclass(frozen=True)
class Tokens:
    ids: np.ndarray
    logp_mu: np.ndarray
    logp_plain: np.ndarray
    version: np.ndarray


def render(messages, tools, after, reply=None, variables=()):
    """The context of `messages`, between ids that the policy may not write, but for the last."""
    ids = []
    if after is not None and after[-1] != CLOSE:
        ids.append(CLOSE)
    for message in messages:
        ids += [OPEN[message.role], *letters(written(message)), CLOSE]
    return np.array([*ids, OPEN["assistant"]])


def written(message):
    calls = "".join(f"[{call.name} {call.arguments}]" for call in message.tool_calls)
    return message.content.strip() + calls


def letters(text):
    return [LETTER + ord(letter) for letter in text]


def sample(text, version, pairs=False, cut=False):
    """What the policy wrote: the same text in single letters, or in pairs."""
    ids = letters(text)
    if pairs:
        pairs_of = [text[i : i + 2] for i in range(0, len(text), 2)]
        ids = [
            PAIR + ord(p[0]) * 256 + ord(p[1]) if len(p) == 2 else LETTER + ord(p) for p in pairs_of
        ]
    ids = np.array(ids if cut else [*ids, CLOSE])
    logp = np.random.default_rng(len(ids)).normal(size=len(ids)).astype(np.float32)
    return Tokens(ids, logp - 1, logp, np.full(len(ids), version, np.int32))


def read(ids):
    """The messages, as (role, text), that these ids say."""
    roles, found = {number: role for role, number in OPEN.items()}, []
    for each in map(int, ids):
        if each in roles:
            found.append((roles[each], ""))
        elif each >= PAIR:
            found[-1] = (
                found[-1][0],
                found[-1][1] + chr((each - PAIR) // 256) + chr((each - PAIR) % 256),
            )
        elif each >= LETTER:
            found[-1] = found[-1][0], found[-1][1] + chr(each - LETTER)
    return found


def say(role, text):
    return ChatMessage(role, text)
