"""Trajectories between rollouts and learner: staleness, buffering, journal, rewards, experts and
packing.

Shape suffixes are those of `ale_jax.records`.
"""
