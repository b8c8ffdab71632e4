"""How long `serve` takes from its start to its first answer, with its own sizes and with those
of a run's engine.

The policy has the layers of SmolLM2-135M, random weights and a small vocabulary.
"""

from __future__ import annotations

import dataclasses
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import jax

from ale_jax.config.run import RunConfig
from ale_jax.configs import smollm2_135m
from ale_jax.model.params import init_params
from ale_jax.model.tokenizer import ChatTokenizer, train_bpe
from ale_jax.model.weights.export import export
from ale_jax.system.checks import checked_config
from ale_jax.system.serve import serving

LAYERS, QUICK_LAYERS = 30, 1
MESSAGES = [{"role": "user", "content": "Name the largest of the planets, and no other."}]
TOKENS = 16  # of the answer
WAIT_S = 1200.0


def measure(quick: bool) -> dict[str, Any]:
    """Returns the CPU seconds of both and their ratio, ours over those with a run's sizes."""
    with tempfile.TemporaryDirectory() as folder:
        config = _made(Path(folder) / "weights", QUICK_LAYERS if quick else LAYERS)
        ours, as_in_run = (first_answer_seconds(config, each) for each in (False, True))
    slots = config.engine.max_sequences
    print(
        f"CPU seconds until the first answer: {ours:.1f}; with the run's {slots} x "
        f"{config.engine.max_sequence_length} in {config.learn.compute_dtype}: {as_in_run:.1f}"
    )
    return {
        "first_answer_s": round(ours, 1),
        "first_answer_as_in_run_s": round(as_in_run, 1),
        "first_answer_ratio": round(ours / as_in_run, 3),
    }


def first_answer_seconds(config: RunConfig, as_in_run: bool) -> float:
    """Returns the CPU seconds of this process from the start of a server to its first answer."""
    jax.clear_caches()
    start = time.process_time()
    with serving(config, None, "127.0.0.1", 0, as_in_run=as_in_run) as at:
        asked = {"model": "any", "messages": MESSAGES, "max_tokens": TOKENS}
        key = {"authorization": f"Bearer {at.key}"}
        url = f"{at.url}/chat/completions"
        httpx.post(url, json=asked, headers=key, timeout=WAIT_S).raise_for_status()
        return time.process_time() - start


def _made(folder: Path, layers: int) -> RunConfig:
    """Writes a policy into a folder; returns the config that serves it."""
    values = smollm2_135m.get_config()
    tokenizer = ChatTokenizer(train_bpe(MESSAGES * 10, 512))
    values.model.num_layers = layers
    values.tokenizer.vocab_size = tokenizer.vocab_size
    config = checked_config(values.to_dict())
    policy = config.model.policy_shape(tokenizer.vocab_size)
    export(folder, init_params(jax.random.key(0), policy), policy, tokenizer)
    return dataclasses.replace(config, weights=str(folder))
