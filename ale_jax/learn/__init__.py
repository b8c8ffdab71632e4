"""Training: the credit of a step, its gradient and update, critics and checkpoints.

Shape suffixes:
    B  rows of packed tokens
    C  chunks of a trajectory
    D  width of the residual stream
    E  experts
    G  groups of trajectories that play one task
    I  sampling masks of a row
    K  experts per token
    L  layers that have experts
    M  microbatches of a step
    Q  critics
    T  tokens of a row or of a trajectory
    U  policy tokens of all batches of a step
    w  words of 32 bits, one bit for each token of the vocabulary
"""
