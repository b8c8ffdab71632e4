"""Is a released checkpoint loaded correctly? Its mean NLL of one sentence, in float32.

    python -m benchmarks.real_weights FILE.gguf [...]

The reference is transformers on torch, from the same files. Weights are not part of the project:
give files that you have (or Hugging Face folders, for which there is no reference).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import sys
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path

import jax
import numpy as np

from ale_jax.config.architecture import PolicyShape
from ale_jax.model.params import Params, count_params
from ale_jax.model.policy import hidden_states, score_tokens
from ale_jax.model.tokenizer import ChatTokenizer
from ale_jax.model.weights.load import load_params, open_checkpoint

SENTENCE = (
    "The quick brown fox jumps over the lazy dog. Water boils at one hundred degrees Celsius at "
    "sea level, and the capital of France is Paris."
)
REFERENCE = {
    "SmolLM2-135M-Instruct.Q4_1.gguf": 3.41289,
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf": 2.23299,
}


@dataclasses.dataclass(frozen=True)
class Finding:
    """nll: natural log, mean over all tokens except the first. weights: number of weights."""

    file: str
    weights: int
    tokens: int
    nll: float
    reference: float | None
    seconds_open: float
    seconds_load: float


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    findings = [measure(path) for path in parser.parse_args(arguments).files]
    print_table(findings)
    print(json.dumps(result(findings)))
    return 0


def measure(path: Path) -> Finding:
    start = time.monotonic()
    checkpoint = open_checkpoint(path)
    opened = time.monotonic()
    params = jax.block_until_ready(load_params(checkpoint))
    loaded = time.monotonic()
    tokenizer = ChatTokenizer.load(path)
    tokenizer.check_fits(checkpoint.shape.vocab_size)
    tokens_T = tokenizer.reply_ids(SENTENCE)[:-1]  # without the end of turn
    return Finding(
        file=path.name,
        weights=count_params(checkpoint.shape)[0],
        tokens=len(tokens_T),
        nll=float(mean_nll(params, tokens_T[None], checkpoint.shape)),
        reference=REFERENCE.get(path.name),
        seconds_open=opened - start,
        seconds_load=loaded - opened,
    )


@partial(jax.jit, static_argnames="shape")
def mean_nll(params: Params, tokens_BT: np.ndarray, shape: PolicyShape) -> jax.Array:
    """Mean over all tokens except the first of each row."""
    position_BT = jax.numpy.broadcast_to(jax.numpy.arange(tokens_BT.shape[1]), tokens_BT.shape)
    one_segment_BT = jax.numpy.ones_like(tokens_BT)
    hidden_BTD, _ = hidden_states(params, tokens_BT, position_BT, one_segment_BT, shape)
    return (
        -score_tokens(params, tokens_BT, hidden_BTD, position_BT, cap=shape.logit_cap)
        .logp_BT[:, 1:]
        .mean()
    )


def print_table(findings: list[Finding]) -> None:
    width = max(len(finding.file) for finding in findings)
    print(f"{'file':{width}}    weights  tokens      NLL  reference  open s  load s")
    for each in findings:
        reference = "-" if each.reference is None else f"{each.reference:.5f}"
        print(
            f"{each.file:{width}}  {each.weights / 1e6:7.1f}M  {each.tokens:6}  {each.nll:.5f}  "
            f"{reference:>9}  {each.seconds_open:6.1f}  {each.seconds_load:6.1f}"
        )


def result(findings: list[Finding]) -> dict[str, object]:
    files = " ".join(finding.file for finding in findings)
    return {
        "command": f"python -m benchmarks.real_weights {files}",
        "hardware": f"{os.cpu_count()} CPU cores, {platform.machine()}, {jax.default_backend()}",
        "versions": {name: version(name) for name in ("jax", "jaxlib", "gguf", "numpy")},
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
