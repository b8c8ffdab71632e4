"""The door through which any agent talks to the policy, and the custody of what was said there.

Shape suffixes are those of `ale_jax.records`.
"""
