"""Training-time test and objective: which slot guesses what, and which of them count."""

from dataclasses import replace

import draft_kit as kit
import pytest
import torch

from gpu_stage.draft import objective
from gpu_stage.draft.batch import Batch, Example, make_batch
from gpu_stage.draft.model import Draft
from gpu_stage.draft.objective import Outcome, divergence
from gpu_stage.draft.unroll import unroll
from gpu_stage.draft.vocabulary import choose_vocabulary

STEPS = 4
WEIGHTS = torch.tensor([1.0, 0.8, 0.64, 0.512])


def taught(draft: Draft, batch: Batch) -> Outcome:
    outs = list(unroll(draft, batch.aux, batch.ids, batch.slots, STEPS))
    normed = draft.norm(torch.stack(outs))
    return divergence(
        normed, draft.lm_head.weight, batch.last, kit.make_head(), batch.positions, WEIGHTS
    )


def plain(draft: Draft, example: Example) -> tuple[torch.Tensor, torch.Tensor]:
    """One sample, slot by slot, every logit written out: divergence by step, and how many count."""
    batch, head = make_batch([example]), kit.make_head()
    sums, counts = [], []
    for k, out in enumerate(unroll(draft, batch.aux, batch.ids, batch.slots, STEPS)):
        log_q = draft.logits(out).log_softmax(-1)
        total, count = torch.zeros(()), 0
        for t in range(len(example.ids)):
            p = t + 1 + k  # the target's distribution behind it is guessed
            if p + 1 < len(example.ids) and example.mask[p] and example.mask[p + 1]:
                log_p = head.log_p(example.states[p : p + 1, -1])[0]
                total = total + (log_p.exp() * (log_p - log_q[t])).sum()
                count += 1
        sums.append(total)
        counts.append(count)
    return torch.stack(sums), torch.tensor(counts)


def test_the_loss_is_the_formula_written_out() -> None:
    """Divergence of each step, and every gradient, with holes in the mask."""
    draft, (example,) = kit.make_draft(), kit.make_examples((5, 14))
    mask = example.mask.clone()
    mask[10] = False
    example = replace(example, mask=mask)
    wanted, counts = plain(draft, example)
    found = taught(draft, make_batch([example]))
    torch.testing.assert_close(found.divergence, wanted.detach())
    assert found.counted.sum(1).tolist() == counts.tolist()
    torch.testing.assert_close(found.loss, (wanted.detach() * WEIGHTS).sum())
    learned = [p for p in draft.parameters() if p.requires_grad]
    torch.testing.assert_close(
        torch.autograd.grad(found.loss, learned),
        torch.autograd.grad((wanted * WEIGHTS).sum(), learned),
    )


def test_samples_of_a_pack_do_not_see_each_other() -> None:
    """Losses of a pack are the sums of its samples' own."""
    draft, examples = kit.make_draft(), kit.make_examples((5, 9), (1, 4), (3, 12))
    together = taught(draft, make_batch(examples)).divergence
    alone = [taught(draft, make_batch([example])).divergence for example in examples]
    torch.testing.assert_close(together, torch.stack(alone).sum(0))


def test_the_first_slot_behind_a_prompt_is_trained() -> None:
    """A prompt of P tokens: slot P − 1 reads the first written token and guesses the second, as the
    first draft call does when the draft is served."""
    prompt = 5
    counted = taught(kit.make_draft(), kit.batch_of((prompt, 6))).counted[0]
    assert counted.nonzero()[:, 0].tolist() == [4, 5, 6, 7, 8]


def test_the_slots_of_later_steps_move_back_by_one_each() -> None:
    """They guess the same positions from one slot earlier, never from another sample's."""
    counted = taught(kit.make_draft(), kit.batch_of((1, 5), (4, 4))).counted
    assert [row.nonzero()[:, 0].tolist() for row in counted] == [
        [0, 1, 2, 3, 9, 10, 11],
        [0, 1, 2, 8, 9, 10],
        [0, 1, 7, 8, 9],
        [0, 6, 7, 8],
    ]
    assert kit.batch_of((1, 5), (4, 4)).positions.counts(STEPS).tolist() == [7, 6, 5, 4]


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few logits are in memory at a time."""
    draft, batch = kit.make_draft(), kit.batch_of((4, 20), (2, 9))
    whole = taught(draft, batch)
    whole_gradient = torch.autograd.grad(whole.loss, draft.fc.weight)[0]
    monkeypatch.setattr(objective, "ROWS", 5)
    pieces = taught(draft, batch)
    torch.testing.assert_close(pieces.divergence, whole.divergence)
    gradient = torch.autograd.grad(pieces.loss, draft.fc.weight)[0]
    torch.testing.assert_close(gradient, whole_gradient)


@pytest.mark.parametrize("variant", ["norm_before_fc", "norm_before_residual"])
def test_the_variants_that_engines_load_change_the_network(variant: str) -> None:
    """With the same weights otherwise."""
    usual, other = kit.make_draft(), kit.make_draft(replace(kit.CONFIG, **{variant: True}))
    other.load_state_dict(usual.state_dict(), strict=False)
    batch = kit.batch_of((3, 8))
    assert not torch.allclose(taught(usual, batch).divergence, taught(other, batch).divergence)


def test_the_vocabulary_is_what_was_written_most() -> None:
    """Offsets, not ids; of equally frequent tokens the lower; what share is covered."""
    counts = torch.tensor([5, 0, 9, 0, 6, 0])
    chosen = choose_vocabulary(counts, 4)
    assert (torch.arange(4) + chosen.d2t).tolist() == [0, 1, 2, 4]
    assert chosen.t2d.tolist() == [True, True, True, False, True, False]
    assert choose_vocabulary(counts, 2).coverage == pytest.approx(15 / 20)
