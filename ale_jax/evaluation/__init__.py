"""Evaluations: the file of their episodes, what follows from one, and what from two.

Shape suffixes are those of `ale_jax.records`.
"""
