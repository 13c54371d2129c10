"""Hidden states of a target over samples: one interface, several engines.

Extraction is a teacher-forced prefill: token ids in, out of the target's residual stream the
states that EAGLE-3 reads. Importing this package takes torch; nothing else of `gpu_stage` does.
"""
