"""What a policy computes: the kinds of its layers, as values that can be compared and hashed.

A family of models is read into these kinds (ale_jax/model/families); what computes, shards, counts
or exports a policy looks at kinds, and at no family.
"""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class LinearScaling:
    """All frequencies are divided by `factor`."""

    factor: float


@dataclasses.dataclass(frozen=True)
class Llama3Scaling:
    """Long waves are divided by `factor`, short ones are kept, those in between are blended."""

    factor: float
    low: float
    high: float
    trained: float


@dataclasses.dataclass(frozen=True)
class YarnScaling:
    """NTK by parts (arXiv 2309.00071). magnitude: of cosine and sine, which tempers the scores.
    whole: the bounds of the blended waves are rounded to whole dimensions."""

    factor: float
    trained: float
    fast: float
    slow: float
    magnitude: float
    whole: bool


@dataclasses.dataclass(frozen=True)
class FactorScaling:
    """Each pair's frequency is divided by a factor of its own. magnitude: of cosine and sine."""

    factors: tuple[float, ...]
    magnitude: float


Scaling = LinearScaling | Llama3Scaling | YarnScaling | FactorScaling


@dataclasses.dataclass(frozen=True)
class Rope:
    """A rotary embedding of the first `width` dims of a head. interleaved: pairs are (0,1), (2,3),
    ..., and not (i, i + width/2)."""

    theta: float
    width: int
    scaling: Scaling | None = None
    interleaved: bool = False


@dataclasses.dataclass(frozen=True)
class Growth:
    """A factor that grows with the position: 1 + rate * log(1 + floor(position / every)), as Llama
    4 has it for queries."""

    rate: float
    every: float


@dataclasses.dataclass(frozen=True)
class Attention:
    """Grouped-query attention.

    scale: of the scores. rope: None: no positions. window: a token sees itself and the window - 1
    tokens before it; 0: all before it. qk_norm: a norm of queries and keys, over each head, with
    weights that the heads share ("head") or with weights of its own ("each"), or over the width of
    all heads. bias: of queries, keys and values; out_bias: of the output. cap:
    scores become cap * tanh(score / cap); 0: they stay as they are. sinks: each head has a score of
    its own that no key belongs to, which takes a share of the softmax. gate: each query head has a
    second half, whose sigmoid weighs the head's output. growth: of queries, which are multiplied
    by it. value_norm: an RMS norm without weights, over each head's values. keys_as_values: there
    is no map of values, which are keys as they are before their norm.
    """

    num_heads: int
    num_kv_heads: int
    head_width: int
    scale: float
    rope: Rope | None
    window: int = 0
    qk_norm: Literal["", "head", "each", "width"] = ""
    bias: bool = False
    out_bias: bool = False
    cap: float = 0.0
    sinks: bool = False
    gate: bool = False
    growth: Growth | None = None
    value_norm: bool = False
    keys_as_values: bool = False


@dataclasses.dataclass(frozen=True)
class GatedDelta:
    """A recurrent mixer: each value head has a memory of fixed size, key_width x value_width, which
    the gated delta rule updates (arXiv 2412.06464).

    num_value_heads: a multiple of num_key_heads; consecutive ones share a key head. conv_width:
    the tokens that queries, keys and values are convolved over, each with itself and those before
    it.
    """

    num_key_heads: int
    num_value_heads: int
    key_width: int
    value_width: int
    conv_width: int


@dataclasses.dataclass(frozen=True)
class Latent:
    """Multi-head latent attention (arXiv 2405.04434): keys and values of all heads are linear maps
    of one latent per token; a rotated key that all heads share is beside them.

    q_rank: width of the latent that queries are maps of; 0: they are maps of the token itself.
    kv_rank: width of the latent of keys and values. nope_width: of the part of a query and key that
    is not rotated; the rotated part, of the rope's width, follows it. value_width: of a value.
    scale: of the scores. bias: of the maps into the latents. out_bias: of the output. eps: of the
    latents' RMS norms.
    """

    num_heads: int
    q_rank: int
    kv_rank: int
    nope_width: int
    value_width: int
    scale: float
    rope: Rope
    bias: bool = False
    out_bias: bool = False
    eps: float = 1e-6

    @property
    def stored_width(self) -> int:
        """Numbers per token from which all keys and values follow."""
        return self.kv_rank + self.rope.width

    @property
    def expanded(self) -> Attention:
        """The attention of the heads' own queries, keys and values, whose values have another
        width."""
        width = self.nope_width + self.rope.width
        return Attention(self.num_heads, self.num_heads, width, self.scale, self.rope)


@dataclasses.dataclass(frozen=True)
class ShortConv:
    """A gated convolution over a few tokens: after * conv(before * x), all of which are linear maps
    of the token, as LFM2 has it.

    width: its channels. conv_width: the tokens that each channel is convolved over, the token
    itself and those before it. bias: of all maps, and of the convolution.
    """

    width: int
    conv_width: int
    bias: bool = False


Activation = Literal["silu", "gelu", "gelu_tanh", "relu2"]


@dataclasses.dataclass(frozen=True)
class ClampedSwiglu:
    """(up + 1) * gate * sigmoid(alpha * gate), the gate being at most `limit`, and the magnitude of
    up, too."""

    alpha: float
    limit: float


Gate = Activation | ClampedSwiglu


@dataclasses.dataclass(frozen=True)
class Dense:
    """A feed-forward: down(activation(gate(x)) * up(x)), or, if it is not gated,
    down(activation(up(x)))."""

    width: int
    activation: Activation = "silu"
    bias: bool = False
    gated: bool = True


@dataclasses.dataclass(frozen=True)
class Experts:
    """A mixture of gated feed-forwards, of which a router chooses K for each token.

    score: the router's scores of the experts. renormalise: the weights of the chosen ones are
    divided by their sum, to which eps is added. scale: of these weights, then. choice_bias: added
    to the scores for the choice alone. groups, top_groups: only experts of the best groups can be
    chosen, a group being as good as its `merit` best experts together. gate: of each expert. bias:
    of its three products; router_bias: of the router's. shared: the width of a feed-forward for all
    tokens; 0: none. shared_gate: which the sigmoid of a projection of the token weighs.
    """

    num: int
    per_token: int
    width: int
    score: Literal["softmax", "sigmoid"] = "softmax"
    renormalise: bool = True
    scale: float = 1.0
    choice_bias: bool = False
    groups: int = 1
    top_groups: int = 1
    merit: int = 2
    gate: Gate = "silu"
    bias: bool = False
    router_bias: bool = False
    shared: int = 0
    shared_gate: bool = False
    eps: float = 0.0


Recurrent = GatedDelta | ShortConv  # what has a state for each conversation
Mixer = Attention | Latent | Recurrent
FeedForward = Dense | Experts


@dataclasses.dataclass(frozen=True)
class Norm:
    """RMS norms. plus_one: x is scaled by 1 + weight. place: before a block, after it (what it
    adds to the residual stream), or both. centred: the mean is subtracted first, which makes them
    layer norms. bias: of those of blocks and the final one; queries and keys have none."""

    eps: float
    plus_one: bool = False
    place: Literal["before", "after", "both"] = "before"
    centred: bool = False
    bias: bool = False


@dataclasses.dataclass(frozen=True)
class Layer:
    """The kind of a decoder layer. residual: scales what each block adds to the stream. parallel:
    both blocks are given the stream as the first norm makes it, and none sees what the other
    adds. scaled: a number of the layer's own, which is not trained, multiplies the stream after
    it."""

    mixer: Mixer
    feed_forward: FeedForward
    norm: Norm
    residual: float = 1.0
    parallel: bool = False
    scaled: bool = False

    @property
    def experts(self) -> Experts | None:
        return self.feed_forward if isinstance(self.feed_forward, Experts) else None


@dataclasses.dataclass(frozen=True)
class PolicyShape:
    """The numbers that define a policy's architecture.

    Their letters in the names of arrays: V vocab_size, D width, L layers, N heads, G key and value
    heads, H width of a head, F width of a feed-forward, E experts, K experts per token.

    family: whose tensors have the names that a checkpoint of it uses; empty: none that
    transformers has. norm: the final one. embed_scale: of the rows of the embedding. hidden_scale:
    of the final hidden states, and so of the logits. logit_cap: of the logits, as an attention's
    `cap` is of its scores. source: the text of the config.json that the
    shape was read from, which an export hands on; empty: of no file.
    """

    vocab_size: int
    width: int
    layers: tuple[Layer, ...]
    norm: Norm
    max_positions: int
    tie_embeddings: bool
    family: str
    embed_scale: float = 1.0
    hidden_scale: float = 1.0
    logit_cap: float = 0.0
    source: str = dataclasses.field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        # Their choices are one array for all layers, in batches, files and statistics.
        sizes = {(each.num, each.per_token) for each in self._mixtures}
        if len(sizes) > 1:
            raise ValueError(
                f"layers with (experts, experts per token) {sorted(sizes)} are not supported, only "
                "those with equal numbers of experts are"
            )

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def is_recurrent(self) -> bool:
        """Whether a layer has a state, from which no token can be taken back."""
        return any(isinstance(layer.mixer, Recurrent) for layer in self.layers)

    @property
    def is_moe(self) -> bool:
        return bool(self._mixtures)

    @property
    def num_moe_layers(self) -> int:
        return len(self._mixtures)

    @property
    def num_experts(self) -> int:
        """The experts of each layer that has some; 0 if none has."""
        return self._mixtures[0].num if self._mixtures else 0

    @property
    def experts_per_token(self) -> int:
        return self._mixtures[0].per_token if self._mixtures else 0

    @property
    def _mixtures(self) -> list[Experts]:
        return [layer.experts for layer in self.layers if layer.experts]
