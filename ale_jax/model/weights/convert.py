"""Writes a checkpoint as a Hugging Face folder, as is or upcycled to experts (arXiv 2212.05055).

    python -m ale_jax.model.weights.convert IN OUT [--experts=8 --experts-per-token=2]

IN is a Hugging Face folder, a .gguf file or the name of a model; OUT does not exist yet.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp

from ale_jax.config.architecture import Dense, Experts, Layer, PolicyShape
from ale_jax.config.model import ModelConfig
from ale_jax.errors import EXIT_FAILED
from ale_jax.model.params import Params, count_params
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.model.weights.export import export
from ale_jax.model.weights.load import load_params, open_checkpoint

# Small, so that no expert is nearly certain at first, and all of them get tokens and gradients.
ROUTER_STDDEV = 0.02
# The families of mixtures whose layers are otherwise those of a dense family.
UPCYCLED = {"qwen3": "qwen3_moe", "qwen2": "qwen2_moe", "llama": "qwen2_moe"}


def upcycled_shape(
    shape: PolicyShape,
    num_experts: int,
    experts_per_token: int,
    dense_layers: tuple[int, ...] = (),
) -> PolicyShape:
    """Returns the shape of the mixture that `upcycle` makes of a dense policy. ValueError if the
    policy is not dense, the sizes do not fit, or there is no family of such mixtures."""
    if shape.is_moe:
        raise ValueError(
            f"the policy has {shape.num_experts} experts: only dense policies can be upcycled"
        )
    if num_experts < 1:
        raise ValueError(f"num_experts {num_experts} must be at least 1")
    if not 1 <= experts_per_token <= num_experts:
        raise ValueError(
            f"experts_per_token {experts_per_token} must lie between 1 and num_experts "
            f"{num_experts}"
        )
    if shape.family not in UPCYCLED:
        raise ValueError(
            f"policies of the family {shape.family!r} cannot be upcycled, only those of "
            f"{', '.join(UPCYCLED)}: transformers has no mixtures of the others' layers"
        )

    def sparse(layer: Layer) -> Layer:
        assert isinstance(layer.feed_forward, Dense)
        experts = Experts(num_experts, experts_per_token, layer.feed_forward.width)
        return dataclasses.replace(layer, feed_forward=experts)

    layers = (each if i in dense_layers else sparse(each) for i, each in enumerate(shape.layers))
    family = UPCYCLED[shape.family]
    return dataclasses.replace(shape, layers=tuple(layers), family=family, source="")


def upcycle(
    params: Params,
    dense: PolicyShape,
    sparse: PolicyShape,
    key: jax.Array,
    shardings: Params | None = None,
) -> Params:
    """Returns the weights of `sparse`: each expert is a copy of the dense layer's feed-forward, and
    the router is new.

    The result computes what the dense policy does, up to rounding: a token's K experts are equal,
    and `norm_topk_prob` makes their weights sum to 1 (without it they would sum to about K/E). In
    training, each expert sees the gradient of its own tokens only, so that the experts diverge.

    shardings: of `sparse`, as from `sharding.param_shardings`; experts are created on the devices
    where they belong. Other weights are those of `params`, not copies.

    Raises ValueError if `sparse` is not an upcycling of `dense`.
    """
    _check_fit(dense, sparse)
    sparse_layers = [i for i, layer in enumerate(sparse.layers) if layer.experts]
    out = None
    if shardings is not None:
        out = {name: shardings["layers"][sparse_layers[0]][name] for name in _NEW}
    make = jax.jit(functools.partial(_experts, num_experts=sparse.num_experts), out_shardings=out)
    layers = list(params["layers"])
    for i in sparse_layers:
        replaced = {name: layers[i][name] for name in _REPLACED}
        kept = {name: weight for name, weight in layers[i].items() if name not in replaced}
        layers[i] = kept | make(replaced, jax.random.fold_in(key, i))
    return params | {"layers": layers}


_REPLACED = ("gate_DF", "up_DF", "down_FD")
_NEW = ("router_DE", "gate_EDF", "up_EDF", "down_EFD")


def _experts(dense: Params, key: jax.Array, num_experts: int) -> Params:
    gate_DF = dense["gate_DF"]
    router_DE = jax.random.normal(key, (gate_DF.shape[0], num_experts), gate_DF.dtype)
    copies = (jnp.repeat(dense[name][None], num_experts, axis=0) for name in _REPLACED)
    return dict(zip(_NEW, (ROUTER_STDDEV * router_DE, *copies), strict=True))


def _check_fit(dense: PolicyShape, sparse: PolicyShape) -> None:
    kept = tuple(i for i, layer in enumerate(sparse.layers) if not layer.experts)
    expected = upcycled_shape(dense, sparse.num_experts, sparse.experts_per_token, kept)
    if expected != sparse:
        found, wanted = (dataclasses.asdict(ModelConfig.of(each)) for each in (sparse, expected))
        wrong = [
            f"{name} {value} should be {wanted[name]}"
            for name, value in found.items()
            if value != wanted[name]
        ]
        raise ValueError(f"not an upcycled shape of this policy: {', '.join(wrong)}")


def main(arguments: Sequence[str]) -> int:
    """Converts a checkpoint by a command line. Returns the exit code, as `ale-jax` has them."""
    options = _parser().parse_args(arguments)
    try:
        shape = convert(options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_FAILED
    print(f"{count_params(shape)[0] / 1e6:.3g} million weights are in {options.target}")
    return 0


def convert(options: argparse.Namespace) -> PolicyShape:
    """Writes the converted checkpoint, and returns its shape. ValueError, with the remedy, for what
    cannot be converted."""
    if options.target.exists():
        raise ValueError(f"{options.target} exists: name a folder that does not")
    checkpoint = open_checkpoint(options.source)
    dense, tokenizer = checkpoint.shape, ChatTokenizer.load(options.source)
    tokenizer.check_fits(dense.vocab_size)
    shape = dense
    if options.experts:  # before what takes long
        shape = upcycled_shape(dense, options.experts, options.experts_per_token)
    params = load_params(checkpoint, jnp.dtype(options.dtype))
    if options.experts:
        params = upcycle(params, dense, shape, jax.random.key(options.seed))
    export(options.target, params, shape, tokenizer)
    return shape


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", metavar="IN", type=Path)
    parser.add_argument("target", metavar="OUT", type=Path)
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument(
        "--experts", type=int, default=0, help="number of experts; 0: do not upcycle"
    )
    parser.add_argument("--experts-per-token", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0, help="seed of the routers")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
