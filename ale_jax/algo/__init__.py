"""The mathematics of reinforcement learning (credit, advantages, ratios and losses) as functions of
arrays.

Shape suffixes (a digit is an axis of that size):
    B  rows of packed tokens
    C  chunks: as many as a row or a trajectory can have
    G  groups of trajectories that play one task
    H  last observations by which states are compared: 1, 2, ..., `anchor_depth`
    J  segments: as many as a row can have
    K  keys: the groups, tags or batches within which units are compared
    M  microbatches of a step
    N  trajectories of a step
    T  tokens of a row
    U  units that are compared with one another: trajectories, chunks or tokens
    X  attention heads of all analysed layers
    k  tokens before an anchor, any of which may introduce it
"""
