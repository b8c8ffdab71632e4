"""What is measured: slices of Qwen3-30B-A3B that fit one GPU, and the limit of its arithmetic."""

from __future__ import annotations

import dataclasses

from ale_jax.config.architecture import PolicyShape
from ale_jax.config.model import ModelConfig
from ale_jax.model.arithmetic import PEAKS

PEAK_FLOPS = PEAKS["NVIDIA H200"]  # that of an H100 (SXM) is the same

VOCABULARY = 151_936
WHOLE_LAYERS = 48  # of Qwen3-30B-A3B


def qwen3_30b_a3b(layers: int, vocab_size: int = VOCABULARY) -> PolicyShape:
    """The model's shape, with `layers` of its layers."""
    return ModelConfig(
        width=2048,
        num_layers=layers,
        num_heads=32,
        num_kv_heads=4,
        head_width=128,
        mlp_width=6144,
        num_experts=128,
        experts_per_token=8,
        expert_width=768,
        rope_theta=1e6,
        max_positions=40_960,
        tie_embeddings=False,
    ).policy_shape(vocab_size)


@dataclasses.dataclass(frozen=True)
class DecodeWork:
    """batches: numbers of concurrent conversations, each with `context` of `max_sequence_length`
    tokens in the cache. steps: decode steps of a dispatch. `dispatches` in a row are timed,
    `repeats` times."""

    shape: PolicyShape
    batches: tuple[int, ...] = (16, 64, 128)
    context: int = 512
    max_sequence_length: int = 1024
    page_tokens: int = 64
    steps: int = 8
    dispatches: int = 8
    repeats: int = 5


@dataclasses.dataclass(frozen=True)
class TrainWork:
    """rows: of one microbatch, by name; each row is one trajectory of `pack_length` tokens."""

    shape: PolicyShape
    rows: dict[str, int]
    pack_length: int = 4096
    repeats: int = 5


DECODE = DecodeWork(qwen3_30b_a3b(layers=16))
QUICK_DECODE = dataclasses.replace(DECODE, shape=qwen3_30b_a3b(layers=2), batches=(64,), repeats=3)


def _train_shape(layers: int) -> PolicyShape:
    """A slice with the same fraction of the vocabulary as of the layers, rounded to a multiple of
    128, so that the output head has the same share of the work as in the whole model."""
    return qwen3_30b_a3b(layers, VOCABULARY * layers // WHOLE_LAYERS // 128 * 128)


TRAIN = TrainWork(_train_shape(4), {"16k": 4, "64k": 16})
QUICK_TRAIN = TrainWork(_train_shape(1), {"16k": 4}, repeats=2)
