"""Training the draft: from shards of hidden states to checkpoints.

settings → data → begin → loop → checkpoint
"""
