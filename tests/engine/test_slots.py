"""A conversation's view of its guide: how far it believes in guesses, and what it takes over."""

import dataclasses

import numpy as np

from ale_jax.engine.guiding import Company, NextToken
from ale_jax.engine.slots import CacheSlot, Request, Written
from tests.engine.playing import PLAIN, STOP, key

STEPS = 8


class Changing:
    """After each of the tokens `changes`, other tokens are allowed. It guesses that none come."""

    def __init__(self, changes):
        self.changes = changes

    def next(self, ids, most):
        held = NextToken(np.array([1 + np.isin(ids, self.changes).sum()], np.int32))
        return [held] + [dataclasses.replace(held, is_guess=True)] * (most - 1)


def begun(guide):
    slot = CacheSlot(0, 200)
    slot.begin(Request(0, np.array([5], np.int32), 100, PLAIN, key(0), Company(guide=guide)), (16,))
    return slot


def write(slot, tokens):
    """As a burst that writes these, as far as it knows what holds. Returns how many were kept."""
    tokens = np.asarray(tokens[: len(slot.guided(STEPS))], np.int32)
    idle = np.full((STEPS - len(tokens),), -1, np.int32)
    none = np.zeros(STEPS)
    own = slot.well_drawn(Written(np.append(tokens, idle), none, none, none, none))
    slot.write(own, 0, STOP)
    return len(own.token_n)


def test_tokens_are_kept_up_to_the_first_wrong_guess():
    slot = begun(Changing([9]))
    assert write(slot, [7, 7, 9, 7, 7, 7, 7, 7]) == 3
    assert (slot.length, slot.budget, slot.tail) == (3, 97, [9])
    assert write(slot, [7, 7, 7, 7, 7, 7, 7, 7]) == 6, "two guesses were right: five more"


def test_wrong_guesses_are_soon_given_up_and_right_ones_believed_again():
    slot, told = begun(Changing([9])), []
    for token in [9, 9, 9, 7, 7, 7]:
        told.append(len(slot.guided(STEPS)))
        write(slot, [token] * STEPS)
    assert told == [8, 2, 2, 2, 4, 8]


def test_a_guide_that_fails_while_guesses_are_checked_fails_the_reply():
    class Failing(Changing):
        def next(self, ids, most):
            if len(ids) == 3:
                raise ValueError("too complex")
            return super().next(ids, most)

    slot = begun(Failing([]))
    request = slot.request
    assert write(slot, [7] * STEPS) == 3
    assert slot.request is None
    assert "too complex" in str(request.future.exception(0))
