"""A model that knows one text by heart, and its tokenizer."""

from __future__ import annotations

import pytest
import torch

from aftermath.data.bytelevel import byte_tokenizer
from aftermath.model.initial_weights import init_weights
from aftermath.model.network import LanguageModel
from aftermath.model.tokenizer import Tokenizer
from evals.known_text import CONFIG, TEXT
from model.library_tokenizer import isolated_tokenizer

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def model() -> LanguageModel:
    """A model that knows one text by heart."""
    torch.manual_seed(0)
    network = CONFIG.build(
        0, {name: tensor * 4 for name, tensor in init_weights(CONFIG, 3).items()}
    )
    ids = torch.tensor([byte_tokenizer().encode(TEXT * 2).ids])
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for start in list(range(20)) * 6:
        optimizer.zero_grad()
        network.loss(ids[:, start : start + 24]).backward()
        optimizer.step()
    return network


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return isolated_tokenizer()
