"""The sizes of the inference engine."""

from __future__ import annotations

import dataclasses

from ale_jax.model.quantised import SAME, STORED_AS


@dataclasses.dataclass(frozen=True)
class EngineShape:
    """slots: conversations at once. slot_tokens: longest conversation. decode_steps: per dispatch.
    On a mesh, its data axes divide slots and pages into shares (see `share`).

    prefill_tokens: a chunk of context is padded to the smallest of these that holds it; the last
    one is the longest chunk. prefill_rows: chunks that are computed together, those of others or
    empty ones beside one's own. prefill_budget: tokens read per dispatch, at most, so that those
    who write do not wait long for those who read. Both are of each share.

    page_tokens, pages: of the cache. A conversation has all the pages that it may ever need from
    its beginning to its end, but those of a prompt that begins alike are shared.
    share_across_versions: also with those who read it under other weights.
    int8_cache: keys and values in a quarter of float32's memory, a little less exact.
    weights: "same" as the learner computes with, "int8" or "fp8" (see model/quantised.py).
    """

    slots: int
    slot_tokens: int
    decode_steps: int
    prefill_tokens: tuple[int, ...]
    prefill_rows: int
    prefill_budget: int
    page_tokens: int
    pages: int
    share_across_versions: bool
    int8_cache: bool
    weights: str

    def __post_init__(self) -> None:
        if self.weights not in STORED_AS:
            raise ValueError(
                f"engine.weights {self.weights!r} is unknown: choose one of {', '.join(STORED_AS)}"
            )
        sizes = self.prefill_tokens
        if not sizes or sorted(sizes) != list(sizes):
            raise ValueError(f"engine.prefill_tokens {sizes} must be numbers in ascending order")
        least = (self.slots, self.slot_tokens, self.decode_steps, self.prefill_rows)
        if min(*least, self.page_tokens, sizes[0]) < 1:
            raise ValueError(f"engine sizes must be at least 1: {self}")
        if self.prefill_budget < self.prefill_rows * sizes[-1]:
            raise ValueError(
                f"engine.prefill_budget {self.prefill_budget} must be at least engine.prefill_rows "
                f"{self.prefill_rows} x the longest chunk, {sizes[-1]}"
            )
        if self.pages < self.pages_per_slot:
            raise ValueError(
                f"engine.pages {self.pages} cannot hold one conversation of engine.slot_tokens "
                f"{self.slot_tokens}: set it to {self.pages_per_slot} or more, and to "
                f"{self.slots * self.pages_per_slot} if all slots are to be used at once"
            )

    def share(self, shares: int) -> EngineShape:
        """What one of so many shares of the mesh has. ValueError if they do not come out."""
        for name, count in (("slots", self.slots), ("pages", self.pages)):
            if count % shares:
                raise ValueError(
                    f"engine.{name} {count} must be a multiple of the mesh's data axes, {shares}: "
                    f"set it to {-(-count // shares) * shares}"
                )
        if self.pages // shares < self.pages_per_slot:
            raise ValueError(
                f"engine.pages {self.pages} leave {self.pages // shares} to each of the mesh's "
                f"{shares} shares, too few for one conversation of engine.slot_tokens "
                f"{self.slot_tokens}: set it to {shares * self.pages_per_slot} or more"
            )
        return dataclasses.replace(self, slots=self.slots // shares, pages=self.pages // shares)

    @property
    def eight_bits(self) -> bool:
        """Something is stored less exactly than the learner has it."""
        return self.int8_cache or self.weights != SAME

    @property
    def pages_per_slot(self) -> int:
        return -(-self.slot_tokens // self.page_tokens)

    @property
    def max_batches(self) -> int:
        """Batches of chunks in one dispatch."""
        return self.prefill_budget // (self.prefill_rows * self.prefill_tokens[0])
