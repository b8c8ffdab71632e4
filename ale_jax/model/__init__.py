"""The policy as functions of arrays: layers and weights, the learner's forward pass over packed
rows, the sampler's KV cache and decode steps, and their kernels.

Shape suffixes (a digit is an axis of that size; lower-case t, m and v are parts of T, M and V):
    A  assignments of a token to an expert: T x K
    B  rows: packed sequences, or new tokens of conversations
    C  capacity: rows that each expert or device takes at once
    D  width of the residual stream
    E  experts
    F  width of a feed-forward layer, or of an expert
    G  key and value heads
    H  width of a head
    I  sampling masks of a row
    J  keys that a block of queries can reach back to
    K  experts per token
    L  layers that have experts
    M  keys that are attended to: those of a row, or of a conversation's cache
    N  query heads
    P  pages of the cache
    Q  batches of context chunks that one dispatch can read
    R  context chunks in such a batch
    S  slots of the cache, one per conversation
    T  tokens: of a row, or of all rows where there is no B
    U  experts, or devices that hold experts, that are computed or sent to at once
    V  vocabulary
    W  pages of a conversation
    X  query heads of all selected layers
    Y  places for rows that are computed or sent at once: U x C
    Z  blocks into which an axis is cut
    b  tokens of a page
    c  bits of a segment's code
    k  most probable tokens that are shown
    m  keys of one block
    n  decode steps
    r  query heads that share a key and value head: N / G
    t  tokens of one block, or of one device's share of a row
    v  entries of one block of the vocabulary
    w  words of 32 bits, one bit for each token of the vocabulary
    x  queries that share a key and value head: t x r or T x r
"""
