"""The EAGLE-3 draft (Li et al., arXiv 2503.01840): its shape, its one layer, its objective.

Tensors in, tensors out; files and loops are `gpu_stage.training`'s.
"""
