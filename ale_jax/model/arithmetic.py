"""How much arithmetic a policy needs, and how much of it a device can do."""

from __future__ import annotations

from collections.abc import Iterable

import jax

from ale_jax.config.architecture import (
    Dense,
    GatedDelta,
    Latent,
    Mixer,
    PolicyShape,
    ShortConv,
)
from ale_jax.config.model import FULL, LoraShape

# FLOP/s of bfloat16 products without sparsity, of one device, by what JAX calls its kind. A part of
# a GPU (MIG) has a longer name, and is not here.
PEAKS = {
    # Google Cloud's pages of each TPU, "Peak compute per chip". A TPU7x is two devices.
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,  # v5e
    "TPU v5e": 197e12,
    "TPU v5": 459e12,  # v5p
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,  # v6e
    "TPU v6e": 918e12,
    "TPU7x": 2307e12 / 2,
    # NVIDIA's data sheets, "BFLOAT16 Tensor Core", halved where they count sparsity.
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H200": 989e12,
    "NVIDIA B200": 2250e12,
}


def peak_flops(kinds: Iterable[str]) -> float:
    """Returns the FLOP/s of devices of these kinds together; 0 if one of them is unknown.

    >>> peak_flops(["NVIDIA H200", "NVIDIA H200"]) / 1e12, peak_flops(["NVIDIA H200", "cpu"])
    (1978.0, 0.0)
    """
    peaks = [PEAKS.get(kind, 0.0) for kind in kinds]
    return sum(peaks) if all(peaks) else 0.0


def kinds_of(mesh: jax.sharding.Mesh) -> list[str]:
    """Returns the kind of each device of a mesh."""
    return [device.device_kind for device in mesh.devices.flat]


def forward_flops(shape: PolicyShape, keys: float) -> dict[str, float]:
    """Returns the FLOPs of one token that attends to `keys` tokens; a multiply-add is two.

    As usual, only matrix products count, with the experts that the token chose and the attention
    scores that are not masked.
    """
    D = shape.width
    total = dict.fromkeys(("projections", "attention", "experts", "dense"), 0.0)
    for layer in shape.layers:
        mixer, feed = layer.mixer, layer.feed_forward
        projections, attention = _mixer_flops(D, mixer, keys)
        total["projections"] += projections
        total["attention"] += attention
        if isinstance(feed, Dense):
            total["dense"] += 2.0 * (3 if feed.gated else 2) * D * feed.width
        else:
            widths = feed.per_token * feed.width + feed.shared
            total["experts"] += 2.0 * (3 * D * widths + D * feed.num)
    return total | {"head": 2.0 * D * shape.vocab_size}


def _mixer_flops(D: int, mixer: Mixer, keys: float) -> tuple[float, float]:
    """FLOPs of the products with weights, and of scores and their sums of values. Keys and values
    of a latent count as if each were expanded once, as the learner does."""
    if isinstance(mixer, Latent):
        N, H, V = mixer.num_heads, mixer.expanded.head_width, mixer.value_width
        queries = mixer.q_rank * (D + N * H) if mixer.q_rank else D * N * H
        expanded = mixer.kv_rank * N * (mixer.nope_width + V)
        weights = queries + D * mixer.stored_width + expanded + N * V * D
        return 2.0 * weights, 2.0 * N * (H + V) * keys
    if isinstance(mixer, GatedDelta):
        N, H, V = mixer.num_value_heads, mixer.key_width, mixer.value_width
        weights = D * (2 * mixer.num_key_heads * H + N * (3 * V + 2))
        return 2.0 * weights, 2.0 * 3 * N * H * V  # a state is read by key and query, and written
    if isinstance(mixer, ShortConv):
        return 2.0 * 4 * D * mixer.width, 2.0 * mixer.conv_width * mixer.width
    N, H = mixer.num_heads, mixer.head_width
    seen = min(keys, mixer.window) if mixer.window else keys
    outputs = (3 if mixer.gate else 2) * N + (1 if mixer.keys_as_values else 2) * mixer.num_kv_heads
    return 2.0 * D * H * outputs, 2.0 * 2 * N * H * seen


def gradient_flops(shape: PolicyShape, keys: float, lora: LoraShape = FULL) -> float:
    """Returns the FLOPs of the forward and the backward pass of one token, on average. keys: the
    mean number of tokens that a token attends to.

    They are 6 for each weight that is active for the token, and for attention three times those of
    the forward pass. Recomputation does not count. Of a frozen weight there are 4, as only the
    product's input has a gradient; the adapters' own products are small, and left out.
    """
    parts = forward_flops(shape, keys)
    attention = parts.pop("attention")
    return (2 if lora.rank else 3) * sum(parts.values()) + 3 * attention
