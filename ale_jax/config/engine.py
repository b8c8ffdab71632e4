"""The inference engine: its sizes, and how it samples."""

from __future__ import annotations

import dataclasses

from ale_jax.config.model import SAME, STORED_AS
from ale_jax.config.setting import Settings, setting

MOST_TOP_K = 2**31 - 1  # slots keep it as int32
GREEDY_BELOW = 1e-30  # a temperature; logits that are divided by less would overflow


@dataclasses.dataclass(frozen=True)
class EngineShape(Settings):
    """Sizes of the sampler. On a mesh, its data axes divide slots and pages into shards (see
    `shard`).
    """

    max_sequences: int = setting(
        64,
        "conversations that are prefilled or decoded at once. Others may be open meanwhile.",
        at_least=1,
    )
    max_sequence_length: int = setting(4096, "tokens of the longest conversation.", at_least=1)
    decode_steps: int = setting(
        8,
        "tokens that are decoded per conversation and dispatch.",
        at_least=1,
    )
    dispatch_ahead: bool = setting(
        False,
        "whether a dispatch begins before the output of the last one is there, so that the "
        "devices need not wait for the host. What arrives meanwhile waits for one dispatch more. "
        "GPUs gain little, as the call that begins a dispatch waits for most of it there.",
    )
    speculative_tokens: int = setting(
        0,
        "tokens that a draft has, which is what followed the two newest tokens where they "
        "occurred before in the conversation; 0: no drafts. Where that pays, one pass verifies the "
        "drafts of all conversations instead of a decode step (model/drafts.py). Tokens are drawn "
        "as without, but the two differ in the last bits, so that a reply's log-probabilities then "
        "depend in these on which conversations are decoded beside it.",
        at_least=0,
    )
    prefill_tokens: tuple[int, ...] = setting(
        (128, 512),
        "prefill bucket sizes. Context is prefilled in chunks, each padded to the smallest size "
        "that holds it; the last one is the longest chunk.",
    )
    prefill_rows: int = setting(
        4,
        "chunks that are computed together, per shard. Rows without one are computed empty.",
        at_least=1,
    )
    prefill_budget: int = setting(
        4096,
        "tokens per shard that are prefilled per dispatch, at most, so that decoding does not "
        "wait long for prefill.",
    )
    page_tokens: int = setting(64, "tokens per page of the cache.", at_least=1)
    pages: int = setting(
        4096,
        "pages of the cache, at least those of one conversation of max_sequence_length in each "
        "shard. A conversation takes them as it grows, and shares those of a prompt with the same "
        "beginning. If there are too few, the pages of some conversations are swapped out to the "
        "host: of those that have been without a request for longest, then of those whose "
        "requests have the lowest priority or came last.",
    )
    share_across_versions: bool = setting(
        False,
        "also share pages that were prefilled under other weights.",
    )
    share_replies: bool = setting(
        False,
        "also share pages behind the first prompt, so that a conversation that was preempted, or "
        "goes on in several ways, is prefilled again from its last full page. Prefill and decode "
        "steps differ in the last bits, so that a reply then depends on which conversations there "
        "were before.",
    )
    int8_cache: bool = setting(
        False,
        "keys and values take a quarter of float32's memory, and are slightly less exact.",
    )
    weights: str = setting(
        "same",
        '"same" as the learner computes with, or stored in eight bits (model/compute.py).',
        choices=STORED_AS,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = self.prefill_tokens
        if not sizes or sorted(sizes) != list(sizes):
            raise ValueError(f"engine.prefill_tokens {sizes} must be numbers in ascending order")
        if sizes[0] < 1:
            raise ValueError(f"engine.prefill_tokens {sizes} must be at least 1")
        if self.prefill_budget < self.prefill_rows * sizes[-1]:
            raise ValueError(
                f"engine.prefill_budget {self.prefill_budget} must be at least engine.prefill_rows "
                f"{self.prefill_rows} x the longest chunk, {sizes[-1]}"
            )
        if self.speculative_tokens and self.dispatch_ahead:
            raise ValueError(
                f"engine.speculative_tokens {self.speculative_tokens} needs the tokens of the last "
                "dispatch, which engine.dispatch_ahead True does not wait for: set it to 0, or "
                "engine.dispatch_ahead to False"
            )
        if self.pages < self.pages_per_sequence:
            raise ValueError(
                f"engine.pages {self.pages} cannot hold one conversation of "
                f"engine.max_sequence_length {self.max_sequence_length}: "
                f"set it to {self.pages_per_sequence} or more, and to "
                f"{self.max_sequences * self.pages_per_sequence} so that all "
                "of engine.max_sequences can have this length at once"
            )

    def shard(self, shards: int) -> EngineShape:
        """Sizes of one of `shards` shards of the mesh. ValueError if slots or pages cannot be
        divided, or too few pages are left to each."""
        for name, count in (("max_sequences", self.max_sequences), ("pages", self.pages)):
            if count % shards:
                raise ValueError(
                    f"engine.{name} {count} must be a multiple of the mesh's data axes, {shards}: "
                    f"set it to {-(-count // shards) * shards}"
                )
        if self.pages // shards < self.pages_per_sequence:
            raise ValueError(
                f"engine.pages {self.pages} leave {self.pages // shards} to each of the mesh's "
                f"{shards} shards, too few for one conversation of engine.max_sequence_length "
                f"{self.max_sequence_length}: set it to {shards * self.pages_per_sequence} or more"
            )
        return dataclasses.replace(
            self, max_sequences=self.max_sequences // shards, pages=self.pages // shards
        )

    @property
    def eight_bits(self) -> bool:
        """Whether anything is stored less exactly than in the learner."""
        return self.int8_cache or self.weights != SAME

    @property
    def pages_per_sequence(self) -> int:
        return -(-self.max_sequence_length // self.page_tokens)

    @property
    def dispatch_tokens(self) -> int:
        """The most tokens of a conversation that one dispatch decodes."""
        return self.decode_steps * (1 + self.speculative_tokens)

    @property
    def swapped_pages(self) -> int:
        """The most pages of a shard that one dispatch swaps out, and as many back in."""
        return max(self.pages // 4, self.pages_per_sequence)

    @property
    def max_batches(self) -> int:
        """The most batches of chunks in one dispatch."""
        return self.prefill_budget // (self.prefill_rows * self.prefill_tokens[0])


@dataclasses.dataclass(frozen=True)
class Sampling(Settings):
    """How one request is sampled. The logits are truncated after the temperature is applied, top_k
    before top_p before min_p, as in transformers. What is trained is the policy as it is sampled.
    """

    temperature: float = setting(
        1.0,
        "what logits are divided by; 0 takes the most probable token.",
        at_least=0,
        remedy="0 takes the most probable token",
    )
    top_k: int = setting(
        0,
        "draw from this many most probable tokens; 0: from all.",
        at_least=0,
        at_most=MOST_TOP_K,
        remedy="0 draws from all tokens",
    )
    top_p: float = setting(
        1.0,
        "draw from the fewest tokens that together have this probability; 1: from all.",
        above=0,
        at_most=1,
    )
    min_p: float = setting(
        0.0,
        "draw from the tokens with at least this share of the most probable one's probability; 0: "
        "from all.",
        at_least=0,
        below=1,
    )

    @property
    def is_greedy(self) -> bool:
        """Whether the most probable token is taken, so that there is no distribution."""
        return self.temperature < GREEDY_BELOW

    @property
    def cuts(self) -> bool:
        """Whether each token is drawn from a set of its own: what top_k, top_p and min_p leave."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0


PLAIN = Sampling()  # from the softmax of the logits as they are
