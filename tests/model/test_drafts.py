"""What a draft is, how often drafts were right, and when a pass that verifies them pays."""

import dataclasses

import numpy as np
import pytest

from ale_jax.model.drafts import NEWEST, Said, look_up, note, pays
from ale_jax.model.sampler import SlotState

K = 4


def _said(*conversations, acceptance=0.5, drafts=True):
    """Of slots with a budget of 10."""
    S, lengths = len(conversations), [len(ids) for ids in conversations]
    id_SL = np.full((S, 16), 7, np.int32)  # 7 is also what is behind the newest token
    for row, ids in zip(id_SL, conversations, strict=True):
        row[: len(ids)] = ids
    said = Said(id_SL, np.full((S,), acceptance, np.float32), np.full((S,), drafts))
    nothing = dict.fromkeys(field.name for field in dataclasses.fields(SlotState))
    state = SlotState(**nothing).replace(
        token_S=np.array([ids[-1] for ids in conversations], np.int32),
        position_S=np.array(lengths, np.int32) - 1,
        budget_S=np.full((S,), 10, np.int32),
    )
    return said, state


def _drafts(*conversations, budget=10, **options):
    said, state = _said(*conversations, **options)
    drafts = look_up(said, state.replace(budget_S=np.full_like(state.budget_S, budget)), K)
    return [[token for token in row if token >= 0] for row in np.asarray(drafts).tolist()]


@pytest.mark.parametrize(
    ("ids", "draft"),
    [
        ([1, 2, 3, 4, 5, 6, 1, 2], [3, 4, 5, 6]),
        ([1, 2, 3, 9, 1, 2, 4, 9, 1, 2], [4, 9, 1, 2]),  # the last time
        ([5, 1, 2, 3, 1, 2], [3, 1, 2, 3]),  # goes on from its beginning
        ([1, 1, 1], [1, 1, 1, 1]),
        ([1, 1], []),
        ([1], []),
        ([1, 2, 3, 2], []),  # one token alone is no occurrence
        ([8, 7, 1, 8], []),  # nor is what comes behind the newest token
    ],
)
def test_a_draft_is_what_followed_the_two_newest_tokens(ids, draft):
    assert _drafts(ids, [9]) == [draft, []]


def test_a_draft_leaves_a_token_of_the_budget_to_the_one_behind_it():
    ids = [1, 2, 3, 4, 5, 6, 1, 2]
    assert [len(_drafts(ids, budget=n)[0]) for n in (0, 1, 2, 4, 5, 9)] == [0, 0, 1, 3, 4, 4]
    assert _drafts(ids, drafts=False) == [[]]


def test_tokens_are_noted_with_whether_they_were_drafted():
    said, state = _said([1, 2], [1, 2], [1, 2], [1, 2])
    state = state.replace(position_S=state.position_S + 1, token_S=np.full((4,), 5, np.int32))
    drawn_S = np.array([True, True, True, False])
    noted = note(said, state, np.array([5, 6, -1, 6]), drawn_S)
    np.testing.assert_array_equal(noted.id_SL[:, :3], [[1, 2, 5]] * 4)
    rates = [0.5 + NEWEST / 2, 0.5 - NEWEST / 2, 0.5, 0.5]
    np.testing.assert_allclose(noted.acceptance_S, rates, rtol=1e-6)


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_a_pass_pays_by_what_it_saves(platform):
    """Of one conversation that repeats itself; among many that do not; of none that goes on."""

    def pays_for(acceptance, slots, active=None):
        said, state = _said(*[[1, 2, 3, 4, 5, 6, 1, 2]] + [[9]] * (slots - 1))
        said = said.replace(acceptance_S=np.full((slots,), acceptance, np.float32))
        active_S = np.arange(slots) < (slots if active is None else active)
        return bool(pays(said, look_up(said, state, K), active_S, platform))

    assert pays_for(0.9, 1) and not pays_for(0.0, 1)
    assert not pays_for(0.9, 200) and not pays_for(1.0, 1, active=0)
    assert pays_for(0.1, 1) == (platform == "gpu"), "whose passes cost less"
