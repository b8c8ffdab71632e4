"""Sizes of the inference engine."""

from __future__ import annotations

import dataclasses

from ale_jax.model.compute import SAME, STORED_AS


@dataclasses.dataclass(frozen=True)
class EngineShape:
    """Sizes of the sampler. On a mesh, its data axes divide slots and pages into shards (see
    `shard`).

    max_sequences: conversations that are prefilled or decoded at once. Others may be open
        meanwhile.
    max_sequence_length: tokens of the longest conversation.
    decode_steps: tokens that are decoded per conversation and dispatch.
    dispatch_ahead: whether a dispatch begins before the output of the last one is there, so that
        the devices need not wait for the host. What arrives meanwhile waits for one dispatch more.
        GPUs gain little, as the call that begins a dispatch waits for most of it there.
    prefill_tokens: prefill bucket sizes. Context is prefilled in chunks, each padded to the
        smallest size that holds it; the last one is the longest chunk.
    prefill_rows: chunks that are computed together, per shard. Rows without one are computed
        empty.
    prefill_budget: tokens per shard that are prefilled per dispatch, at most, so that decoding does
        not wait long for prefill.
    page_tokens: tokens per page of the cache.
    pages: pages of the cache, at least those of one conversation of max_sequence_length in each
        shard. A conversation takes them as it grows, and shares those of a prompt with the same
        beginning. If there are too few, the pages of some conversations are swapped out to the
        host: of those that have been without a request for longest, then of those whose requests
        have the lowest priority or came last.
    share_across_versions: also share pages that were prefilled under other weights.
    share_replies: also share pages behind the first prompt, so that a conversation that was
        preempted, or goes on in several ways, is prefilled again from its last full page. Prefill
        and decode steps differ in the last bits, so that a reply then depends on which
        conversations there were before.
    int8_cache: keys and values take a quarter of float32's memory, and are slightly less exact.
    weights: "same" as the learner computes with, or stored in eight bits (model/compute.py).
    """

    max_sequences: int = 20
    max_sequence_length: int = 384
    decode_steps: int = 4
    dispatch_ahead: bool = False
    prefill_tokens: tuple[int, ...] = (32, 128)
    prefill_rows: int = 1
    prefill_budget: int = 512
    page_tokens: int = 16
    pages: int = 480
    share_across_versions: bool = False
    share_replies: bool = False
    int8_cache: bool = False
    weights: str = "same"

    def __post_init__(self) -> None:
        if self.weights not in STORED_AS:
            raise ValueError(
                f"engine.weights {self.weights!r} is unknown: choose one of {', '.join(STORED_AS)}"
            )
        sizes = self.prefill_tokens
        if not sizes or sorted(sizes) != list(sizes):
            raise ValueError(f"engine.prefill_tokens {sizes} must be numbers in ascending order")
        if sizes[0] < 1:
            raise ValueError(f"engine.prefill_tokens {sizes} must be at least 1")
        counts = ("max_sequences", "max_sequence_length", "decode_steps", "prefill_rows")
        for name in (*counts, "page_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"engine.{name} {getattr(self, name)} must be at least 1")
        if self.prefill_budget < self.prefill_rows * sizes[-1]:
            raise ValueError(
                f"engine.prefill_budget {self.prefill_budget} must be at least engine.prefill_rows "
                f"{self.prefill_rows} x the longest chunk, {sizes[-1]}"
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
    def swapped_pages(self) -> int:
        """Of a shard, the most pages that one dispatch swaps out, and as many back in."""
        return max(self.pages // 4, self.pages_per_sequence)

    @property
    def max_batches(self) -> int:
        """The most batches of chunks in one dispatch."""
        return self.prefill_budget // (self.prefill_rows * self.prefill_tokens[0])
