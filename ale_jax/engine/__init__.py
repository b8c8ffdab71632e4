"""The inference engine: continuous batching over a paged cache.

Shape suffixes (a digit is an axis of that size):
    D  width of the residual stream
    K  experts per token
    L  layers that have experts
    M  tokens in all pages of the cache
    P  pages of the cache
    Q  batches of prefill chunks in a dispatch
    R  prefill chunks in such a batch
    S  slots of the cache, one per conversation
    T  tokens of a prefill chunk, or consecutive tokens of a conversation
    V  vocabulary
    W  pages of a conversation
    X  shards of the cache
    b  tokens of a page
    k  most probable tokens that are shown
    n  decode steps
    w  words of 32 bits, one bit for each token of the vocabulary
"""
