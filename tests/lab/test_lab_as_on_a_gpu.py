"""Test that a training on a simulated GPU ends with the CPU's bits, also after a resume."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from aftermath.lab.training_loop import CHECKPOINT
from aftermath.model.architectures import config_of
from aftermath.model.initial_weights import init_weights
from aftermath.model.save_checkpoint import write_checkpoint
from aftermath.sim.setup import CONFIG
from lab.lab_place import CPU, DISTRO, INNER, prepare, training_loop
from replica.simulated_gpu import gpu_at_hand

WHOLE = config_of(CONFIG.to_hf() | {"num_key_value_heads": CONFIG.to_hf()["num_attention_heads"]})
ARMS: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adamw"},
    "muon": {"optimizer": "muon"},
    "distro": DISTRO | {"members": 2, "tiers": "0,1", "total_batch": 2},
    "inner muon": INNER
    | {"members": 2, "tiers": "0,1", "total_batch": 4, "inner_optimizer": "muon", "overlap": "1"},
}


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["adamw", "distro", "muon", "inner muon"])
def test_lab_on_simulated_gpu_equals_cpu_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arm: str
) -> None:
    # torch's fused AdamW runs only on the CPU and rounds differently
    for module in ("inner_optimizer", "moments"):
        monkeypatch.setattr(f"aftermath.optim.{module}.may_fuse", lambda _: False)
    root = prepare(tmp_path)
    # its heads share keys, and a GPU's attention rounds differently then
    shutil.rmtree(root / "model")
    write_checkpoint(root / "model", init_weights(WHOLE, 0), WHOLE, tier=0, companions={})
    options = ARMS[arm] | {"steps": 3, "save_every": 1}
    training_loop(root, on=CPU, out=root / "there", **options).run()
    with gpu_at_hand() as gpu:
        training = training_loop(root, on=gpu, out=root / "here", **options)
        training.stop()  # after one step
        with pytest.raises(KeyboardInterrupt):
            training.run()
        training_loop(root, on=gpu, out=root / "here", **options).run()
    here, there = (
        (root / out / CHECKPOINT / "model.safetensors").read_bytes() for out in ("here", "there")
    )
    assert here == there
    assert load_file(root / "here" / CHECKPOINT / "model.safetensors")
