"""Decoders of files of users, checkpoints, the Hub and ledgers, and of requests to the local
network.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import sqlite3
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import msgpack
from safetensors.torch import save
from solders.keypair import Keypair

from aftermath.base.bounded import Malformed, json_value, msgpack_as, toml_value
from aftermath.base.errors import AftermathError, ConfigError, SchemaError
from aftermath.chain.wallet import (
    IDENTITY_VARIABLE,
    WALLET_VARIABLE,
    WalletError,
    identity_secret,
    load_wallet,
)
from aftermath.config.document import RunConfig, parse_as
from aftermath.data.bytelevel import byte_tokenizer
from aftermath.data.local import open_tokens
from aftermath.localnet.bank import Bank, open_chain
from aftermath.localnet.errors import LedgerError
from aftermath.localnet.json_rpc import Rpc
from aftermath.localnet.ledger import DATABASE, Ledger
from aftermath.localnet.pubsub import SubscriberConnection
from aftermath.localnet.read_methods import ReadMethods
from aftermath.localnet.records import Chain, Era, Landed
from aftermath.localnet.slots import VirtualTime
from aftermath.localnet.subscriptions import Subscriptions
from aftermath.model import manifest as manifests
from aftermath.model.arch.llama_config import LlamaConfig
from aftermath.model.architectures import config_of
from aftermath.model.config import ModelConfigError
from aftermath.model.initial_weights import init_weights
from aftermath.model.json_documents import MOMENTUM_FILE, CheckpointError, hf_config, read_index
from aftermath.model.levels import MOMENTUM
from aftermath.model.momentum_file import read_momentum, write_momentum
from aftermath.model.published_checkpoints import SCALES, Form
from aftermath.model.save_checkpoint import write_checkpoint
from aftermath.model.weights import read_weights
from aftermath.optim.codec import BadPayload
from aftermath.optim.result_file import (
    BadGradientFile,
    GradientFile,
    ResultOrigin,
    read_gradient_file,
)
from aftermath.optim.schema import Schema
from aftermath.rules.sparseloco import SparseLoCo
from aftermath.sim.setup import CONFIG, RULES
from fuzz.decoder import Decode, Decoder, folder, now, through_file
from member.result_inbox import SCHEMA, empty_payload
from replica.whole_round import MODELS

KEY = Keypair.from_seed(bytes(32))
SHA = "ab" * 32


def model_configs() -> tuple[list[bytes], Decode]:
    plain = {k: v for k, v in CONFIG.to_hf().items() if not k.startswith("matformer")}
    ropes: list[dict[str, object]]
    ropes = [
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        {"eos_token_id": [1, 2]},
        {},
    ]
    nano: dict[str, object]
    nano = {
        "model_type": "nanogpt",
        "vocab_size": 9,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 2,
    }
    others = [
        CONFIG.to_hf(1),
        {**nano, "num_attention_heads": 2, "value_embeddings": 1, "logit_softcap": 9.5},
    ]
    others += known_models()
    seeds = [json.dumps({**plain, **more}).encode() for more in ropes] + [
        json.dumps(one).encode() for one in others
    ]
    return seeds, through_file("config.json", lambda path: config_of(hf_config(path)))


def known_models() -> list[dict[str, Any]]:
    """Return a `config.json` of each architecture that this installation can read."""
    return [
        document
        for name, document in sorted(MODELS.items())
        if not name.startswith("auto") or find_spec("transformers")
    ]


def config_values() -> tuple[list[bytes], Decode]:
    """Decode a `config.json` of each architecture with changed values, and compute the shapes of
    each that is accepted.

    The bytes of a message select the model, a key, its value, a second key and its value.
    """
    everyone = [
        (document, sorted({*config_of(document).to_hf(), *document, *ODD_KEYS}))
        for document in known_models()
    ]

    def read(data: bytes) -> object:
        of, *changes = data or b"\0"
        plain, keys = everyone[of % len(everyone)]
        document = dict(plain)
        pairs = zip(changes[:4:2], changes[1:4:2], strict=False)
        document |= {keys[key % len(keys)]: ODD[value % len(ODD)] for key, value in pairs}
        config = config_of(document)
        return config.parameter_shapes(), config.pieces(), config.tables()

    return [bytes([of]) for of in range(len(everyone))] + [
        bytes((of, 5, 6, 90, 4)) for of in range(99)
    ], read


ODD_KEYS = [
    "attention_bias",
    "auto_map",
    "layer_types",
    "num_labels",
    "pad_token_id",
    "rope_scaling",
    "torch_dtype",
]
ODD: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    1,
    3,
    1 << 31,
    (1 << 63) - 1,
    10**25,
    math.inf,
    math.nan,
    0.5,
]
ODD += [
    1e308,
    "",
    "x",
    "x" * 30_000,
    "\ud800",
    [],
    [1],
    [[1]],
    {},
    {"a": 1},
    ["x", None],
    {"rope_type": "yarn"},
]


def weights() -> tuple[list[bytes], Decode]:
    tiny = LlamaConfig.from_hf({**CONFIG.to_hf(), "vocab_size": 2, "hidden_size": 4, "head_dim": 2})

    def read(path: Path) -> object:
        return read_weights([path], tiny, stored=0, tier=0)

    decode = through_file("model.safetensors", read)
    directory = folder() / "weights"
    write_checkpoint(directory, init_weights(tiny, 1), tiny, tier=0, companions={})
    return [(directory / "model.safetensors").read_bytes()], decode


def momentum() -> tuple[list[bytes], Decode]:
    tiny = LlamaConfig.from_hf({**CONFIG.to_hf(), "vocab_size": 2, "hidden_size": 4, "head_dim": 2})
    shapes = {MOMENTUM + name: shape for name, shape in tiny.parameter_shapes(1).items()}

    def read(path: Path) -> object:
        return read_momentum(path.parent, tiny, shapes)

    full = tiny.parameter_shapes()
    write_momentum(folder(), {n: torch.ones(s, dtype=torch.int64) for n, s in full.items()})
    return [(folder() / MOMENTUM_FILE).read_bytes()], through_file(MOMENTUM_FILE, read)


def weights_in_fp8() -> tuple[list[bytes], Decode]:
    tiny = LlamaConfig.from_hf({**CONFIG.to_hf(), "vocab_size": 2, "hidden_size": 4, "head_dim": 2})

    def read(path: Path) -> object:
        return read_weights([path], tiny, stored=0, tier=0, form=Form((3, 2)))

    filed = {}
    for name, tensor in init_weights(tiny, 1).items():
        rows, columns = (*tensor.shape, 1)[:2]
        matrix = "proj" in name
        filed[name] = tensor.to(torch.float8_e4m3fn) if matrix else tensor
        if matrix:
            filed[name + SCALES] = torch.ones(-(-rows // 3), -(-columns // 2))
    return [save(filed)], through_file("model.safetensors", read)


def indexes() -> tuple[list[bytes], Decode]:
    index = {
        "metadata": {"total_size": 5},
        "weight_map": {"a": "model-00001.safetensors", "b": "x.safetensors"},
    }
    return [json.dumps(index).encode()], through_file("model.safetensors.index.json", read_index)


def tier_manifests() -> tuple[list[bytes], Decode]:
    names = ["../m-tier1/config.json", "../m-tier1/model.safetensors"]
    entry = manifests.TierFiles(1, names, 16)
    seed = manifests.encode_manifest(32, [entry], ["tokenizer.json"], dict.fromkeys(names, SHA))

    def read(data: bytes) -> object:
        manifest = manifests.parse_manifest(data).of_tier(1)
        local = [manifests.local_path(Path("/tmp/m"), listed, 1) for listed in manifest.files]
        assert all(Path("/tmp") in path.parents and ".." not in path.parts for path in local)
        return local, [
            manifests.hub_path("m/matformer_manifest.json", listed) for listed in manifest.files
        ]

    return [seed], read


def ledger_rows() -> tuple[list[bytes], Decode]:
    """Decode a transaction of a database that is valid otherwise."""
    directory = folder() / "ledger"
    shutil.rmtree(directory, ignore_errors=True)  # of an earlier test in this process
    landed = Landed(5, 0, bytes(65), None, 0, [1], [1], b"meta", [], [])
    with contextlib.closing(Ledger(directory)) as ledger:
        ledger.recover()
        ledger.start(Chain(bytes(32), [Era(0, 0.0, 400)], 5, 0), [])
        ledger.append([(landed, [])])

    def read(data: bytes) -> object:
        with contextlib.closing(sqlite3.connect(directory / DATABASE)) as database, database:
            database.execute("UPDATE history SET landed = ?", (data,))
        with contextlib.closing(Ledger(directory)) as ledger:
            return ledger.recover()

    return [msgpack.encode(landed)], read


def tokens() -> tuple[list[bytes], Decode]:
    def read(path: Path) -> object:
        opened = open_tokens(path, 2, 4, vocab_size=64)
        return opened.read([0, opened.sequences - 1])

    return [np.arange(16, dtype="<u2").tobytes()], through_file("tokens.bin", read)


def calls() -> tuple[list[bytes], Decode]:
    bank, _ = open_chain(None, VirtualTime(), 400, [])
    answerer = Rpc(
        bank, {name: call for name, call in ReadMethods(bank).methods().items() if name in QUICK}
    )

    def read(data: bytes) -> object:
        answer = now(answerer.answer(data))
        assert isinstance(answer, bytes)
        assert b"-32603" not in answer, "a fault of ours"
        return answer

    return [*map(encoded, requests()), json.dumps([*requests()]).encode()], read


def subscriptions() -> tuple[list[bytes], Decode]:
    bank: Bank = open_chain(None, VirtualTime(), 400, [])[0]
    subscriptions = Subscriptions(bank)
    place: list[SubscriberConnection] = []

    def read(data: bytes) -> object:
        if not place or place[0]._queue.qsize() > 500:
            for old in place:
                subscriptions.drop(old)
            place[:] = [SubscriberConnection(subscriptions)]
        place[0]._calls.answer(data)
        return None

    seeds: list[tuple[str, object]] = [
        ("accountSubscribe", [str(KEY.pubkey()), {"encoding": "base64", "commitment": "confirmed"}])
    ]
    seeds += [
        ("slotSubscribe", None),
        ("logsSubscribe", [{"mentions": [str(KEY.pubkey())]}]),
        ("x", [1]),
    ]
    seeds += [
        ("programSubscribe", [str(KEY.pubkey()), {"filters": [{"dataSize": 5}]}]),
        ("accountUnsubscribe", [1]),
    ]
    return [encoded({"jsonrpc": "2.0", "id": 1, "method": m, "params": p}) for m, p in seeds], read


QUICK = (
    "getAccountInfo",
    "getMultipleAccounts",
    "getBalance",
    "getSlot",
    "getSignatureStatuses",
    "getBlockHeight",
)


def requests() -> list[dict[str, Any]]:
    key = str(KEY.pubkey())
    config = {"encoding": "base64", "dataSlice": {"offset": 0, "length": 4}, "commitment": "x"}
    parameters: list[Any] = [
        [key, config],
        [[key], config],
        [key],
        [],
        [["1" * 64]],
        [{"minContextSlot": 1}],
    ]
    return [
        {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        for method, params in zip(QUICK, parameters, strict=True)
    ]


def encoded(value: Any) -> bytes:
    return json.dumps(value).encode()


def wallets() -> tuple[list[bytes], Decode]:
    seeds = [KEY.to_json().encode(), str(KEY).encode(), str(list(bytes(32))).encode()]
    return seeds, through_file("id.json", load_wallet)


def wallet_variables() -> tuple[list[bytes], Decode]:
    return wallets()[0], lambda data: load_wallet(
        env={WALLET_VARIABLE: data.decode("utf-8", "surrogateescape") or "x"}
    )


def identities() -> tuple[list[bytes], Decode]:
    wallet = load_wallet(env={WALLET_VARIABLE: str(KEY)})

    def read(data: bytes) -> object:
        return identity_secret(
            "run", wallet, env={IDENTITY_VARIABLE: data.decode("utf-8", "replace")}
        )

    return [b"ab" * 32], read


def run_configs() -> tuple[list[bytes], Decode]:
    inner = (
        RULES[: RULES.index("[model.LLM.optimizer")]
        + "[model.LLM.optimizer.SparseLoCo]\nouter_lr = 0.5\n"
    )
    return [RULES.encode(), inner.encode()], lambda data: parse_as(
        data.decode("utf-8", "replace"), "config.toml", RunConfig
    )


def schemas() -> tuple[list[bytes], Decode]:
    kinds = (SCHEMA, Schema(SCHEMA.state, SparseLoCo()))
    return [schema.to_json() for schema in kinds], Schema.from_json


def gradient_files() -> tuple[list[bytes], Decode]:
    origin = ResultOrigin(
        run_id="sim", epoch=0, round=3, step=12, seat=3, tier=1, learning_rate=0.004
    )
    seed = GradientFile(
        SCHEMA, origin, {level: empty_payload(level) for level in (1, 2)}
    ).to_bytes()
    return [seed], through_file("step.safetensors", lambda path: read_gradient_file(path).votes())


CHECKPOINT = (CheckpointError, ModelConfigError)
BOUND = (Malformed,)
FILES = [
    Decoder("config.json", model_configs, CHECKPOINT),
    Decoder("config.json's values", config_values, CHECKPOINT),
    Decoder("safetensors", weights, CHECKPOINT),
    Decoder("safetensors in fp8", weights_in_fp8, CHECKPOINT),
    Decoder("outer momentum", momentum, CHECKPOINT),
    Decoder("safetensors index", indexes, CHECKPOINT),
    Decoder("tier manifest", tier_manifests, CHECKPOINT),
    Decoder("schema", schemas, (SchemaError, ModelConfigError)),
    Decoder("gradient file", gradient_files, (BadGradientFile, BadPayload)),
    Decoder("tokens", tokens, (AftermathError,)),
    Decoder("run config", run_configs, (ConfigError,)),
    Decoder("key file", wallets, (WalletError,)),
    Decoder("key variable", wallet_variables, (WalletError,)),
    Decoder("identity", identities, (WalletError,)),
    Decoder("ledger row", ledger_rows, (LedgerError,)),
    Decoder("call", calls),
    Decoder("subscription", subscriptions),
    Decoder("any JSON", lambda: ([encoded(requests()), byte_tokenizer().to_str().encode()[:2000]], json_value), BOUND),
    Decoder("any msgpack", lambda: ([b"\x82\xa1a\x93\x01\x02\xc0\xa1b\xcb" + bytes(8)], any_msgpack), BOUND),
    Decoder("any TOML", lambda: ([b'a.b = [1, {c = "x"}]\n[d]\ne = 1.5\n'], any_toml), BOUND),
]  # fmt: skip


def any_msgpack(data: bytes) -> object:
    return msgpack_as(data, Any)


def any_toml(data: bytes) -> object:
    return toml_value(data.decode("utf-8", "replace"))
