"""A run that waits where a test needs time, and notes which episodes come back:

    python -m tests.system.actors.gated_run FOLDER PLACES FLAGS-OF-LAUNCH...

Training replies wait, from when PLACES episodes have asked (FOLDER/held), for FOLDER/go_on; the end
of the first step (FOLDER/step) for FOLDER/joined.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from ale_jax.data.replay import ReplayBuffer
from ale_jax.gateway import answers
from ale_jax.launch import main_program
from ale_jax.system.run_logger import RunLogger
from benchmarks.survival.watch import after

LIMIT_S = 120.0


class Gates:
    def __init__(self, folder, places):
        self._folder, self._places = folder, places
        self._trains, self._asked = False, 0
        self._sampled = answers._sampled

    def opened(self, buffer, *arguments):
        self._trains = True

    def added(self, buffer, trajectory):
        key = trajectory.episode.key
        line = [key.group, key.member, trajectory.episode.status]
        with (self._folder / "back").open("a") as file:
            file.write(json.dumps(line) + "\n")

    async def sampled(self, request, pending):
        await self._sampled(request, pending)
        if self._trains:
            self._asked += 1
            if self._asked == self._places:
                (self._folder / "held").touch()
            deadline = time.monotonic() + LIMIT_S
            while not (self._folder / "go_on").exists():
                assert time.monotonic() < deadline, "go_on"
                await asyncio.sleep(0.02)

    def stepped(self, logger, *arguments):
        (self._folder / "step").touch()
        self._wait_for("joined")

    def _wait_for(self, name):
        deadline = time.monotonic() + LIMIT_S
        while not (self._folder / name).exists():
            assert time.monotonic() < deadline, name
            time.sleep(0.02)


if __name__ == "__main__":
    gates = Gates(Path(sys.argv[1]), int(sys.argv[2]))
    after(ReplayBuffer, "__init__", gates.opened)
    after(ReplayBuffer, "add", gates.added)
    answers._sampled = gates.sampled
    after(RunLogger, "rl_step", gates.stepped)
    sys.exit(main_program(["launch", *sys.argv[3:]]))
