"""The door through which any agent talks to the policy, and the custody of what was said there.

Shape suffixes:
    I  sampling masks of an episode
    K  experts per token
    L  layers that have experts
    T  consecutive tokens of a conversation
    V  vocabulary
    k  most probable tokens that are shown
    w  words of 32 bits, one bit for each token of the vocabulary
"""
