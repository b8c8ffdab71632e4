"""The inference engine: continuous batching over a paged cache.

Shape suffixes are those of `ale_jax.records`.
"""
