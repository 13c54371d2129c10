"""The GPU stage: completions to token ids, training set, hidden states, draft.

It meets the producer and the workers in a run's directory and in Redis, never in code.
"""
