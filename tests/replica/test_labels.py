"""Only labels are learnt. The gradient is that of the mean over all labels of a share, for any
micro-batch.
"""

import threading

import pytest
import torch
import torch.nn.functional as F

from aftermath.model.initial_weights import init_weights
from aftermath.model.network import LanguageModel
from aftermath.replica.passes import Passes
from aftermath.replica.replica import accumulate
from aftermath.sim.setup import CONFIG

GENERATOR = torch.Generator().manual_seed(5)
IDS = torch.randint(0, 64, (6, 16), generator=GENERATOR)
LABELS = torch.where(torch.rand((6, 16), generator=GENERATOR) < 0.7, -100, IDS)
LABELS[2] = -100  # a row without learnt labels
SHARE = torch.stack([IDS, LABELS], 1)


def network() -> LanguageModel:
    return CONFIG.build(0, init_weights(CONFIG, 1))


@pytest.mark.parametrize("micro", [1, 2, 4, 6])
def test_labelled_loss_is_equal_for_any_micro_batch(micro: int) -> None:
    model = network()
    other = network()
    loss = accumulate(Passes(model), SHARE, micro, threading.Event())
    chosen = LABELS[:, 1:] != -100
    expected = F.cross_entropy(other(IDS[:, :-1])[chosen], IDS[:, 1:][chosen])
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    for one, other_parameter in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other_parameter.grad, rtol=1e-4, atol=1e-6)


def test_labels_equal_to_tokens_give_pretraining_loss() -> None:
    model = network()
    other = network()
    assert accumulate(
        Passes(model), torch.stack([IDS, IDS], 1), 4, threading.Event()
    ) == pytest.approx(accumulate(Passes(other), IDS, 4, threading.Event()), rel=1e-6)


def test_share_without_labels_changes_nothing() -> None:
    model = network()
    assert accumulate(Passes(model), SHARE[2:3], 4, threading.Event()) == 0
    assert all(not parameter.grad.any() for parameter in model.parameters())
