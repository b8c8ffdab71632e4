"""A controller that waits for ever in the middle of four episodes: python -m tests.system.held_crew
RUNTIME. Once all are under way it prints its actors' pids, as JSON."""

import json
import sys

from ale_jax.agent.loop import AgentLimits
from ale_jax.model.sampler import Sampling
from ale_jax.records import Assignment, Slot, Task
from ale_jax.rollout.door import PolicyDoor
from ale_jax.system.cluster import ray_cluster
from ale_jax.system.config import RolloutConfig
from ale_jax.system.crew import Crew
from tests.system.conftest import SPEC
from tests.system.oracle_ledger import OracleLedger


def main(runtime: str) -> None:
    rollout = RolloutConfig(runtime, actors=2, episodes_per_actor=2, max_reply_tokens=64, retries=0)
    pids = []
    ledger = OracleLedger()
    ledger.gate.clear()

    def record(kind, detail, **fields):
        pids.append(fields["pid"])

    with ray_cluster(rollout.actors), PolicyDoor(ledger) as door:
        with Crew(rollout, SPEC, AgentLimits(turns=9), ledger, door, record) as crew:
            for group in range(4):
                slot = Slot("train", group, 0, Task("count", group, "train"))
                crew.submit(Assignment(slot), Sampling())
            while ledger.asked < 4 or len(pids) < 2:
                crew.next_result(0.1)
            print(json.dumps(pids), flush=True)
            while True:
                crew.next_result(1.0)


if __name__ == "__main__":
    main(sys.argv[1])
