"""Tests of keys: every source, file modes, and that no message, repr or log contains a secret."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
from pathlib import Path

import pytest
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from aftermath.base.errors import UsageError
from aftermath.chain.options import public_key
from aftermath.chain.wallet import (
    IDENTITY_VARIABLE,
    WALLET_VARIABLE,
    Wallet,
    WalletError,
    create_wallet,
    identity_public,
    identity_secret,
    load_wallet,
)


def test_created_key_file_is_private_and_loads_again(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "me.json"
    wallet = create_wallet(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_wallet(path).pubkey == wallet.pubkey
    assert list(path.parent.iterdir()) == [path]
    with pytest.raises(WalletError, match="exists already"):
        create_wallet(path)
    assert load_wallet(path).pubkey == wallet.pubkey


@pytest.mark.parametrize("form", ["array", "base58", "seed array", "spaces"])
def test_wallet_variable_accepts_json_and_base58(form: str) -> None:
    keypair = Keypair()
    text = {
        "array": keypair.to_json(),
        "base58": str(keypair),
        "seed array": json.dumps(list(keypair.secret())),
        "spaces": f"  {keypair.to_json()}\n",
    }[form]
    assert load_wallet(None, {WALLET_VARIABLE: text}).pubkey == keypair.pubkey()


def test_wallet_file_precedes_variable(tmp_path: Path) -> None:
    wallet = create_wallet(tmp_path / "a.json")
    assert (
        load_wallet(tmp_path / "a.json", {WALLET_VARIABLE: str(Keypair())}).pubkey == wallet.pubkey
    )


def test_default_wallet_file_is_used_or_options_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(WalletError, match="no wallet was given") as caught:
        load_wallet(None, {})
    assert WALLET_VARIABLE in caught.value.fix
    wallet = create_wallet(tmp_path / ".config/solana/id.json")
    assert load_wallet(None, {}).pubkey == wallet.pubkey


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[1,2,3]",
        "[256" + ",1" * 63 + "]",
        "hello",
        "[" + "1," * 63 + "1]",
        '{"a": 1}',
        "0" * 88,
        "é" * 10,
    ],
)
def test_invalid_keys_are_refused_without_quoting_them(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(WalletError) as caught:
        load_wallet(path)
    assert not text or text not in str(caught.value)


ADDRESS = Keypair().pubkey()
SEED = Keypair().secret()
NOT_PRIVATE = {
    "address": (str(ADDRESS), "32 bytes, as an address has"),
    "address-with-spaces": (f" {ADDRESS}\n", "32 bytes, as an address has"),
    "quoted-address": (json.dumps(str(ADDRESS)), "neither"),
    "seed-in-base58": (str(Pubkey(SEED)), "32 bytes, as an address has"),
    "seed-in-hex": (SEED.hex(), "neither"),
    "keypair-in-hex": (bytes(Keypair()).hex(), "neither"),
    "two-addresses": (
        json.dumps(list(bytes(ADDRESS) * 2)),
        "not a private key followed by its public key",
    ),
    "63-bytes": (
        json.dumps(list(bytes(Keypair())[:63])),
        "not a private key followed by its public key",
    ),
    "65-bytes": (
        json.dumps([*bytes(Keypair()), 0]),
        "not a private key followed by its public key",
    ),
}


@pytest.mark.parametrize("kind", NOT_PRIVATE)
def test_wallet_without_keypair_is_refused(tmp_path: Path, kind: str) -> None:
    text, message = NOT_PRIVATE[kind]
    path = tmp_path / "key.json"
    path.write_text(text)
    with pytest.raises(WalletError, match=message) as of_file:
        load_wallet(path, {})
    with pytest.raises(WalletError, match=message) as of_variable:
        load_wallet(None, {WALLET_VARIABLE: text})
    for caught in (of_file, of_variable):
        assert text.strip() not in str(caught.value)
        assert "64 numbers" in caught.value.fix


def test_key_file_with_32_numbers_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "address.json"
    path.write_text(json.dumps(list(bytes(ADDRESS))))
    with pytest.raises(WalletError, match="32 bytes, as an address has"):
        load_wallet(path, {})


def test_private_key_given_as_address_is_not_quoted() -> None:
    secret = str(Keypair())
    with pytest.raises(UsageError, match="too long for a public key") as caught:
        public_key(secret)
    assert secret not in str(caught.value)


@pytest.mark.parametrize("kind", ["address", "base58", "array", "hex"])
def test_address_or_key_in_place_of_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    keypair = Keypair()
    secrets = {"base58": str(keypair), "array": keypair.to_json(), "hex": keypair.secret().hex()}
    text = {"address": str(keypair.pubkey())} | secrets
    for use in (
        load_wallet,
        create_wallet,
        lambda path: identity_secret("r", Wallet(keypair), path),
    ):
        with pytest.raises(WalletError) as caught:
            use(Path(text[kind]))
        error_text = f"{caught.value.message}\n{caught.value.fix}"
        assert "--create" not in error_text
        assert "is an address, not a key file" in error_text or kind != "address"
        assert "a private key was passed" in error_text or kind == "address"
        assert text[kind] not in error_text or kind == "address"
    assert not list(tmp_path.iterdir())


def test_key_file_named_like_address_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    wallet = create_wallet(tmp_path / "made.json")
    Path("made.json").rename(str(wallet.pubkey))
    assert load_wallet(Path(str(wallet.pubkey))).pubkey == wallet.pubkey


def test_keypair_with_foreign_public_half_is_refused() -> None:
    mixed = list(Keypair().secret()) + list(bytes(Keypair().pubkey()))
    with pytest.raises(WalletError, match="not a Solana private key"):
        load_wallet(None, {WALLET_VARIABLE: json.dumps(mixed)})


def test_key_file_readable_by_others_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "open.json"
    create_wallet(path)
    path.chmod(0o644)
    with caplog.at_level(logging.WARNING):
        load_wallet(path)
    assert f"chmod 600 {path}" in caplog.text
    assert path.read_text() not in caplog.text


def test_huge_and_unreadable_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    path.write_bytes(b"[" + b"1," * 10_000)
    with pytest.raises(WalletError, match="too long"):
        load_wallet(path)
    with pytest.raises(WalletError, match="there is no key file"):
        load_wallet(tmp_path / "none")
    with pytest.raises(WalletError, match="cannot read"):
        load_wallet(tmp_path)


def test_wallet_repr_hides_secret(tmp_path: Path) -> None:
    wallet = create_wallet(tmp_path / "w.json")
    for text in (repr(wallet), str(wallet)):
        assert str(wallet.pubkey) in text
        assert str(wallet.keypair) not in text


def test_identity_is_derived_from_run_and_wallet(tmp_path: Path) -> None:
    wallet = create_wallet(tmp_path / "w.json")
    secret = identity_secret("run", wallet, None, {})
    assert secret == hashlib.sha256(b"aftermath p2p" + b"run" + bytes(wallet.keypair)[:32]).digest()
    assert secret != identity_secret("other", wallet, None, {})
    assert identity_public(secret) == bytes(Keypair.from_seed(secret).pubkey())


def test_identity_comes_from_file_or_variable(tmp_path: Path) -> None:
    wallet = create_wallet(tmp_path / "w.json")
    secret = os.urandom(32)
    raw = tmp_path / "raw"
    text = tmp_path / "hex"
    raw.write_bytes(secret)
    text.write_text(secret.hex() + "\n")
    assert identity_secret("run", wallet, raw, {}) == secret
    assert identity_secret("run", wallet, text, {}) == secret
    assert identity_secret("run", wallet, None, {IDENTITY_VARIABLE: secret.hex()}) == secret
    text.write_text("zz" * 32)
    with pytest.raises(WalletError, match="32 raw bytes or 64 hex"):
        identity_secret("run", wallet, text, {})
