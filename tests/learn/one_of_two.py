"""One of two processes that train together: python -m tests.learn.one_of_two ADDRESS NUMBER FILE.

Imported by the test, it is what a single process does.
"""

import json
import sys
from pathlib import Path

import jax

from ale_jax.algo.losses import count_loss_denominator
from ale_jax.config.hardware import MeshShape
from ale_jax.config.learn import Shape
from ale_jax.data.packing import pack_all
from ale_jax.learn.state import init_state, make_optimizer
from ale_jax.learn.step import ModelSpec, make_train_step
from ale_jax.model.sharding import make_mesh
from tests.learn.test_step import HYPERS, sample_transcripts, transcript_loss
from tests.model.shapes import MOE

MESH = MeshShape(data=2, expert=2, tensor=2)
STEPS = 3


def losses() -> list[float]:
    """Of each step; the later ones tell whether the gradients were right."""
    mesh, optimizer = make_mesh(MESH), make_optimizer(HYPERS, MOE)
    state = init_state(jax.random.key(0), MOE, optimizer, mesh)
    step = make_train_step(ModelSpec(MOE, mesh, balance_weight=1e-2), optimizer, transcript_loss)
    batches = pack_all(sample_transcripts(16), Shape(8, 64, 8))
    found = []
    for _ in range(STEPS):
        state, sums, _ = step(state, batches, count_loss_denominator(batches, "tokens"))
        found.append(float(sums["loss"]))
    return found


if __name__ == "__main__":
    address, number, file = sys.argv[1:]
    jax.distributed.initialize(address, num_processes=2, process_id=int(number))
    assert (jax.device_count(), jax.local_device_count()) == (8, 4)
    Path(file).write_text(json.dumps(losses()))
