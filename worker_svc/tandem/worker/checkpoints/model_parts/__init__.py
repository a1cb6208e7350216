"""What `ModelConfig` is made of: the sizes of parts that a model may have, and for each kind of its fields the checks,
what follows from them, and the tensors.

    limits            how large sizes may be, the error of what is impossible
    latents, indexer, compression, recurrences, rope, mlp, experts, beside_stream, hyper_connections
                      parts that a layer may have, each checked for itself
    layers            which layers there are, and what each has and sees
    heads             on layers: heads of attention, and what is kept of a token
    positions         on heads: how a token's position is known
    attention         on positions: all else of attention
    stream            on layers: the stream, its norms, and what is added to it
    feed_forward      on layers: feed-forward parts
"""
