"""Merge: the samples of several datasets and runs into one training set.

    runs ─▶ survey ─▶ choose ─▶ scatter ─▶ DIR/train, heldout      shuffled part files
            each row   reasons   second        dropped.parquet     every row left out, and why
            in 65      between   pass          token_counts.npy    for the draft's vocabulary
            bytes      rows                    set.json, card.md   what is in it

Two passes over the files; no pass holds the ids of more than one part of the set.
"""

from gpu_stage.merge.run import merge

__all__ = ["merge"]
