"""A conversation's view of its guide: how far it speculates, and what it accepts."""

import dataclasses

import numpy as np

from ale_jax.engine.request import Request, RequestOptions, TokenConstraint
from ale_jax.engine.sequence import DecodedTokens, SequenceState
from tests.engine.playing import PLAIN, STOP, key

STEPS = 8


class Changing:
    """After each of the tokens `changes`, other tokens are allowed. It guesses that none come."""

    def __init__(self, changes):
        self.changes = changes

    def next(self, ids, most):
        certain = TokenConstraint(np.array([1 + np.isin(ids, self.changes).sum()], np.int32))
        return [certain] + [dataclasses.replace(certain, is_speculative=True)] * (most - 1)


def begun(guide, left=None, **options):
    sequence, options = SequenceState(0, 200), RequestOptions(guide=guide, left=left, **options)
    sequence.begin(Request(0, np.array([5], np.int32), 100, PLAIN, key(0), options), (16,))
    return sequence


def decode(sequence, tokens):
    """As a dispatch that decodes these, as far as there are constraints. Returns how many were
    accepted."""
    tokens = np.asarray(tokens[: len(sequence.guided(STEPS))], np.int32)
    idle = np.full((STEPS - len(tokens),), -1, np.int32)
    none = np.zeros(STEPS)
    left_nw = np.arange(STEPS, dtype=np.int32)[:, None]
    accepted = sequence.accepted(DecodedTokens(np.append(tokens, idle), *[none] * 4, left_nw))
    sequence.append(accepted, 0, STOP)
    return len(accepted.token_n)


def test_tokens_are_accepted_up_to_the_first_wrong_constraint():
    sequence = begun(Changing([9]))
    assert decode(sequence, [7, 7, 9, 7, 7, 7, 7, 7]) == 3
    assert (sequence.length, sequence.budget, sequence.pending_ids) == (3, 97, [9])
    assert decode(sequence, [7, 7, 7, 7, 7, 7, 7, 7]) == 6, "two guesses were right: five more"


def test_a_conversation_may_have_less_room_than_the_engine_gives():
    sequence = begun(Changing([]), context=4)
    request = sequence.request
    assert sequence.budget == 3 and sequence.tokens_with(request, 100) == 3
    decode(sequence, [7] * STEPS)
    sampled = request.future.result(0)
    assert (len(sampled.ids), sampled.stop) == (3, "context_full")
    assert begun(None, context=999).budget == 100, "the engine's limit still holds"


def test_wrong_guesses_are_soon_given_up_and_right_ones_believed_again():
    sequence, told = begun(Changing([9])), []
    for token in [9, 9, 9, 7, 7, 7]:
        told.append(len(sequence.guided(STEPS)))
        decode(sequence, [token] * STEPS)
    assert told == [8, 2, 2, 2, 4, 8]


def test_a_guide_that_fails_while_guesses_are_checked_fails_the_reply():
    class Failing(Changing):
        def next(self, ids, most):
            if len(ids) == 3:
                raise ValueError("too complex")
            return super().next(ids, most)

    sequence = begun(Failing([]))
    request = sequence.request
    assert decode(sequence, [7] * STEPS) == 3
    assert sequence.request is None
    assert "too complex" in str(request.future.exception(0))


class Numbers:
    """Knows what fits into its room."""

    def __init__(self, room):
        self.room = room

    def number(self, allowed_w):
        if allowed_w[0] >= self.room:
            raise ValueError("too many sets")
        return 10 + int(allowed_w[0])


def test_what_was_left_of_accepted_tokens_is_kept_in_place_of_what_the_guide_says():
    sequence = begun(Changing([9]), Numbers(STEPS))
    request = sequence.request
    assert decode(sequence, [7, 9, 7, 7, 7, 7, 7, 7]) == 2
    assert decode(sequence, [7, 3]) == 2
    np.testing.assert_array_equal(request.future.result(0).mask_id, [10, 11, 10, 11])


def test_a_reply_that_is_drawn_from_too_many_sets_fails():
    sequence = begun(Changing([]), Numbers(3))
    request = sequence.request
    decode(sequence, [7] * STEPS)
    assert sequence.request is None and "too many sets" in str(request.future.exception(0))
