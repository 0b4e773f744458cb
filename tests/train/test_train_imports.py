"""Test which modules commands do not import, to start fast."""

from __future__ import annotations

import subprocess
import sys

import pytest

SHARDING = ("torch.distributed.fsdp", "torch.distributed.tensor", "sympy")
SELDOM = (*SHARDING, "torch._dynamo", "triton", "transformers", "matplotlib", "textual")
INNER_STEPS = """
import torch
from aftermath.optim.inner_optimizer import InnerOptimizer
from aftermath.rules.sparseloco import SparseLoCo

for kind in ("adamw", "muon"):
    matrix, vector = torch.nn.Parameter(torch.ones(4, 4)), torch.nn.Parameter(torch.ones(4))
    matrix.grad, vector.grad = torch.ones(4, 4), torch.ones(4)
    params = {"model.layers.0.mlp.up_proj.weight": matrix, "model.norm.weight": vector}
    InnerOptimizer(params, SparseLoCo(topk=4, topk_embeddings=4, chunk=4, inner_optimizer=kind)).step(0.1, [])
    assert not (matrix == 1).any() and not (vector == 1).any()
"""


def imported(modules: str, absent: tuple[str, ...], program: str = "") -> str:
    """Return which of the `absent` modules a process imports with these modules and this
    program.
    """
    program = f"import sys, {modules}\n{program}\nprint(*(name for name in {absent!r} if name in sys.modules))"
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.slow
def test_session_announces_torch_import_first() -> None:
    assert (
        imported("aftermath.train.session, aftermath.server.client_backend", ("torch", *SELDOM))
        == ""
    )


@pytest.mark.slow
def test_owner_commands_create_schema_without_torch() -> None:
    """`update-config` and `config validate` check the model's shape without any tensor."""
    assert (
        imported(
            "aftermath.owner.schema, aftermath.owner.warnings, aftermath.owner.agreed_data",
            ("torch",),
        )
        == ""
    )


@pytest.mark.slow
def test_session_imports_no_rarely_needed_modules() -> None:
    """Import all that training needs, torch included, and make a step of each inner optimizer."""
    modules = "aftermath.train.session, aftermath.train.device_options, aftermath.train.assembly"
    assert imported(modules, SELDOM, INNER_STEPS) == ""
