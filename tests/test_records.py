"""Numbers of tasks, of which keys of random draws are made."""

import zlib

from ale_jax.records import Task


def test_the_number_of_a_task_is_its_seed_or_made_of_its_name():
    assert [Task("sort", seed, "train").number for seed in (0, 1, 7)] == [0, 1, 7]
    for name in (-1, "0", "fix-git"):
        assert Task("sort", name, "train").number == zlib.crc32(str(name).encode())
