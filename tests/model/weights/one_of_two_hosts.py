"""A process of two that share a mesh: loads the checkpoint and exports it again.

python -m tests.model.weights.one_of_two_hosts PORT NUMBER IN OUT
"""

import sys
from pathlib import Path

import jax

from ale_jax.config.hardware import MeshShape
from ale_jax.model.sharding import make_mesh, param_shardings
from ale_jax.model.weights.export import export
from ale_jax.model.weights.load import load_params, open_checkpoint


def main(port, number, source, target):
    jax.distributed.initialize(f"localhost:{port}", 2, int(number))
    checkpoint = open_checkpoint(source)
    mesh = make_mesh(MeshShape(fsdp=2, expert=2, tensor=2))
    params = load_params(checkpoint, shardings=param_shardings(checkpoint.shape, mesh))
    assert not params["embed_VD"].is_fully_addressable
    export(Path(target), params, checkpoint.shape, max_shard_bytes=40_000)


if __name__ == "__main__":
    main(*sys.argv[1:])
