"""Speculative decoding of draft and target in PyTorch, to measure what a draft is worth.

One sequence at a time, a chain of guesses: what an engine does, without its speed.
"""
