"""Synthetic worlds in which the trainer's own credit and losses are compared without noise.

Shape suffixes (a digit is an axis of that size):
    C  chunks of an episode, at most
    D  stages of a world
    G  groups of an update
    L  tokens of a chunk, at most
    M  tasks
    N  episodes of an update
    Q  critics
    S  seeds
    T  tokens of an episode: C chunks of L
    V  words
"""
