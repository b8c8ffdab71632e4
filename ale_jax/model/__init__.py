"""The policy as functions of arrays: layers and weights, the learner's forward pass over packed
rows, the sampler's KV cache and decode steps, and their kernels.

Shape suffixes are those of `ale_jax.records`.
"""
