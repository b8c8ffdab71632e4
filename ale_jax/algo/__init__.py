"""The mathematics of reinforcement learning: credit, advantages, ratios and losses, as functions of
arrays.

Shape suffixes (a digit is an axis of that size):
    B  rows of packed tokens
    C  chunks of a row or of a trajectory, at most
    G  groups of trajectories that play one task
    J  segments of a row, at most
    K  keys: the groups, tags or batches within which units are compared
    M  microbatches of a step
    N  trajectories of a step
    T  tokens of a row
    U  units that are compared: trajectories, chunks or tokens
    X  attention heads of all layers that are looked at
    k  tokens before an anchor in which it may be introduced
"""
