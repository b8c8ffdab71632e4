"""Training: the credit of a step, its gradient and update, critics and checkpoints.

Shape suffixes are those of `ale_jax.records`.
"""
