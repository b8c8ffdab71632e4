"""Trajectories between rollouts and learner: staleness, buffering, journal, rewards, experts and
packing.

Shape suffixes:
    B  rows of packed tokens
    C  chunks of a trajectory; in the arrays of a step, as many as a trajectory can have
    G  groups of trajectories that play one task
    H  last observations by which states are compared: 1, 2, ..., `anchor_depth`
    I  sampling masks of an episode or of a row
    K  experts per token
    L  layers that have experts
    N  trajectories of a step
    P  prefix turns of a trajectory
    T  tokens of a row or of a trajectory
    w  words of 32 bits, one bit for each token of the vocabulary
"""
