"""Decoders of a process's own files, which may be damaged, and of tokenizers from peers."""

from __future__ import annotations

import tempfile
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load, save

from aftermath.data.bytelevel import byte_tokenizer
from aftermath.data.data_server import load_server_settings
from aftermath.data.source import DataError
from aftermath.lab.saved_state import STATE, Counters, load_state, save_state
from aftermath.member.private_state import _Binding, _read, _save
from aftermath.member.state_roots import StateRoot
from aftermath.model.json_documents import CheckpointError
from aftermath.model.tokenizer_process import read
from aftermath.optim.interfaces import BadState
from aftermath.optim.state_merkle import tree_of
from fuzz.decoder import Decode, Decoder, through_file
from optim.private_states import OPTIMIZERS, trained


def optimizers() -> tuple[list[bytes], Decode]:
    """Decode tensors of any shape, dtype and content. A refusal leaves the optimizer unchanged."""
    _, engine = trained(OPTIMIZERS["distro"], 2)

    def take(data: bytes) -> object:
        engine.restore(load(data))
        return engine.tree()

    return [save(engine.state())], take


def kept_optimizers() -> tuple[list[bytes], Decode]:
    _, engine = trained(OPTIMIZERS["distro"], 2)
    state = engine.state()
    bound = _Binding("demo", "ab" * 32, "cd" * 32, 2, 3, {"2": "ef" * 32})
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kept.safetensors"
        _save(file, state, bound, StateRoot(tree_of(state).root, 2, 5))
        return [file.read_bytes()], through_file(
            "kept.safetensors", lambda path: _read(path, bound)
        )


def trainings() -> tuple[list[bytes], Decode]:
    _, engine = trained(OPTIMIZERS["distro"], 2)
    with tempfile.TemporaryDirectory() as folder:
        save_state(Path(folder), engine.state(), Counters({"seed": 1}, 5, 4, [(1, [2, 3])], 600))
        seed = (Path(folder) / STATE).read_bytes()
    return [seed], through_file(STATE, lambda path: load_state(path.parent))


def data_server_settings() -> tuple[list[bytes], Decode]:
    text = f'dir = "tokens"\nseq_len = 32\ntoken_size = "FourBytes"\nshuffle_seed = {list(range(32))}\n'
    return [text.encode()], through_file("data.toml", load_server_settings)


def tokenizers() -> tuple[list[bytes], Decode]:
    whole = byte_tokenizer().to_str().encode()
    small = b'{"model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}}'
    return [whole[:2000], small], lambda data: read(data).get_vocab_size()


OWN = [
    Decoder("optimizer", optimizers, (SafetensorError, BadState)),
    Decoder("kept optimizer", kept_optimizers, (CheckpointError,)),
    Decoder("training", trainings, (CheckpointError,)),
    Decoder("settings of a data server", data_server_settings, (DataError,)),
    Decoder("tokenizer", tokenizers, (ValueError,)),
]
