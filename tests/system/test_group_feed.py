"""The groups of the train loop, counted while a step takes its own."""

import threading
from types import MappingProxyType

import pytest

from ale_jax.data.journal import Journal
from ale_jax.system.group_feed import GroupFeed
from ale_jax.system.rollouts.pool import PLACES, Load
from ale_jax.system.rollouts.scheduler import RolloutScheduler
from ale_jax.system.tasks import Cursor
from tests.data.make_trajectories import make_trajectory, make_turn
from tests.system.in_process import FromTheStart, run_config

GROUPS, MEMBERS = 2, 2  # of a step
BACK_FIRST = [(2, 0), (2, 1), (3, 1)]  # of what may be played ahead: a whole group and a half
OF_THE_STEP = [(0, 0), (0, 1), (1, 0), (1, 1)]


class Workers:
    """In place of rollout workers: these episodes end, in this order, and the others never.

    delivered: set once the buffer has them.
    """

    free_places = 100
    loads = MappingProxyType({PLACES: Load(8, 0, 0)})

    def __init__(self, ended):
        self._ended, self._left = ended, None
        self.delivered = threading.Event()

    def submit(self, request, sampling):
        if (request.key.group, request.key.member) == self._ended[-1]:
            self._left = iter(self._ended)

    def results(self, timeout):
        if self._left is None:  # not all were asked for
            return
        for group, member in self._left:
            yield make_trajectory(group, member, [make_turn([1], [2, 3])])
        self.delivered.set()

    def start_versions(self):
        return {}


def _nothing(*args, **fields):
    pass


@pytest.mark.parametrize(
    ("alpha", "ended", "sizes"),
    [
        (0.0, OF_THE_STEP, (0, 0, 0)),
        # Four groups ahead: one is complete, one has a member, two are only in flight.
        (2.0, [*BACK_FIRST, *OF_THE_STEP], (3, 1, 1)),
    ],
)
def test_what_a_step_leaves_is_counted(alpha, ended, sizes, tmp_path):
    config = run_config(1, rl={"alpha": alpha, "groups_per_step": GROUPS, "group_size": MEMBERS})
    resampler, workers = FromTheStart(MEMBERS), Workers(ended)
    with Journal(tmp_path, _nothing) as journal, RolloutScheduler(workers, _nothing) as scheduler:
        feed = GroupFeed(config, Cursor(), scheduler, resampler, journal, _nothing)
        assert [group.index for group in feed.take(workers.delivered.wait)] == [0, 1]
        names = ("inflight_groups", "partial_groups", "buffer_size")
        assert feed.sizes() == dict(zip(names, sizes, strict=True))
