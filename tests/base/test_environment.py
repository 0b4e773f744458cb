"""Test the environment of child processes that read a stranger's bytes."""

import os
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Library
from tokenizers.models import WordLevel

from aftermath.base.environment import bare_environment, environment_without_secrets
from aftermath.model.tokenizer import Tokenizer

SECRETS = (
    *(
        "RAW_WALLET_PRIVATE_KEY",
        "RAW_IDENTITY_SECRET_KEY",
        "HF_TOKEN",
        "HUGGING_FACE_HUB_TOKEN",
        "WANDB_API_KEY",
    ),
    *("AWS_SECRET_ACCESS_KEY", "RPC", "RPC_2", "WS_RPC", "https_proxy"),
)


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "hidden-value")


@pytest.mark.usefixtures("secrets")
@pytest.mark.parametrize("environment", [bare_environment, environment_without_secrets])
def test_child_environment_leaves_secrets_out(environment: type[dict[str, str]]) -> None:
    variables = environment()
    assert variables["PATH"] == os.environ["PATH"]
    assert "hidden-value" not in variables.values()


def test_rank_environment_keeps_device_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    device_variables = {
        "CUDA_VISIBLE_DEVICES": "1",
        "NCCL_DEBUG": "WARN",
        "OMP_NUM_THREADS": "2",
        "XDG_CACHE_HOME": "/tmp/x",
    }
    for name, value in device_variables.items():
        monkeypatch.setenv(name, value)
    assert device_variables.items() <= environment_without_secrets().items()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.usefixtures("secrets")
def test_tokenizer_child_has_no_secrets() -> None:
    document = Library(WordLevel({"a": 0, "b": 1}, unk_token="a")).to_str().encode()
    tokenizer = Tokenizer(document, "model/tokenizer.json")
    environment = Path(f"/proc/{tokenizer._child.pid}/environ").read_bytes()
    assert tokenizer.vocab_size == 2
    assert b"PATH=" in environment
    assert b"hidden-value" not in environment
