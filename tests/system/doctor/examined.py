"""One of two processes that are examined, with the seed of its config and a clock that is ahead:

python -m tests.system.doctor.examined ADDRESS PROCESS SEED SECONDS
"""

import sys
import time

from ale_jax.config.worlds import Domain
from ale_jax.system.doctor import examination
from ale_jax.system.doctor.software import software_report
from ale_jax.system.hosts.start import HostOptions
from tests.system.configs import smoke_config

GAME = {
    "train": (Domain("countdown", ("countdown3",)),),
    "held_out": (),
}  # needs no sandbox


def main(argv):
    _, address, process, seed, seconds = argv
    return examination.examine(
        smoke_config(worlds=GAME, eval={"held_out_tasks": 0}, seed=int(seed)),
        HostOptions(address, 2, int(process)),
        None,
        software_report(int(process)),
        lambda: time.time() + float(seconds),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv))
