"""A checkpoint, as it is or with its layers upcycled to experts, written as a Hugging Face folder.

    python -m ale_jax.model.weights.convert IN OUT [--experts=8 --experts-per-token=2]

IN is a Hugging Face folder or a .gguf file; OUT is a folder that does not exist yet.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.model.weights.export import export
from ale_jax.model.weights.load import load_params, open_checkpoint
from ale_jax.model.weights.upcycle import upcycle, upcycled_shape


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    try:
        convert(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def convert(options: argparse.Namespace) -> None:
    if options.target.exists():
        raise ValueError(f"{options.target} exists: name a folder that does not")
    checkpoint = open_checkpoint(options.source)
    shape, tokenizer = checkpoint.shape, ChatTokenizer.load(options.source)
    tokenizer.check_fits(shape.vocab_size)
    params = load_params(checkpoint, jnp.dtype(options.dtype))
    if options.experts:
        sparse = upcycled_shape(shape, options.experts, options.experts_per_token)
        params = upcycle(params, shape, sparse, jax.random.key(options.seed))
        shape = sparse
    export(options.target, params, shape, tokenizer)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", metavar="IN", type=Path)
    parser.add_argument("target", metavar="OUT", type=Path)
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument("--experts", type=int, default=0, help="upcycle to so many; 0: do not")
    parser.add_argument("--experts-per-token", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="of the routers")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
