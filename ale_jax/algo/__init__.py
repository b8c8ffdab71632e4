"""The mathematics of reinforcement learning (credit, advantages, ratios and losses) as functions of
arrays.

Shape suffixes are those of `ale_jax.records`.
"""
