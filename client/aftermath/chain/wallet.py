"""Load and create a member's keys: its wallet, and the secret of its peer identity.

The wallet is a Solana CLI key file or RAW_WALLET_PRIVATE_KEY (JSON array of 64 or 32 bytes, or
base58). The identity comes from a file (32 raw bytes or hex), from RAW_IDENTITY_SECRET_KEY, or from
the wallet and the run, so that it survives restarts. Secrets never get into output, logs or a repr.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shlex
import stat
from collections.abc import Mapping
from pathlib import Path

from solders.keypair import Keypair
from solders.pubkey import Pubkey

from aftermath.base.bounded import json_value
from aftermath.base.files import fix_of, parents_made
from aftermath.coordinator.errors import CoordinatorError

log = logging.getLogger(__name__)

WALLET_VARIABLE = "RAW_WALLET_PRIVATE_KEY"
PATH_VARIABLE = "WALLET_PRIVATE_KEY_PATH"  # the option's variable; this module does not read it
IDENTITY_VARIABLE = "RAW_IDENTITY_SECRET_KEY"
DEFAULT_PATH = Path("~/.config/solana/id.json")
NO_WALLET = "no wallet was given"
MAX_KEY_FILE = 4096
_SEED = 32
_MOST_ADDRESS = 44
"""Base58 digits of 32 bytes."""
_LOOKS_SECRET = re.compile(r"\s*\[.*|[1-9A-HJ-NP-Za-km-z]{80,90}|[0-9a-fA-F]{64}", re.DOTALL)
"""A JSON array, 64 bytes in base58, or 32 bytes in hex, as keys are written."""
_KEY_FIX = "Use the wallet's key file of the Solana CLI, a JSON array of 64 numbers, or base58 of the same 64 bytes"


class WalletError(CoordinatorError):
    """A key file or variable cannot be used."""

    code = "wallet"


class Wallet:
    """A keypair that hides its secret: `str` and `repr` show only the public key."""

    def __init__(self, keypair: Keypair, source: str = "") -> None:
        self._keypair = keypair
        self.source = source

    @property
    def keypair(self) -> Keypair:
        return self._keypair

    @property
    def pubkey(self) -> Pubkey:
        return self._keypair.pubkey()

    @property
    def public(self) -> bytes:
        """The public key's 32 bytes."""
        return bytes(self._keypair.pubkey())

    def __repr__(self) -> str:
        return f"Wallet({self.pubkey})"


def load_wallet(path: Path | None = None, env: Mapping[str, str] | None = None) -> Wallet:
    """Load the wallet from `path`, RAW_WALLET_PRIVATE_KEY or the Solana CLI's file, in this order.

    Raises WalletError if there is none or it is malformed. Warns if other users can read the file.
    """
    env = os.environ if env is None else env
    if path is not None:
        try:
            return _from_file(path.expanduser())
        except WalletError as error:
            if env.get(PATH_VARIABLE) != str(path):
                raise
            raise WalletError(
                error.message, f"{error.fix}; the variable {PATH_VARIABLE} names this file"
            ) from error
    if raw := env.get(WALLET_VARIABLE):
        return Wallet(_parse_keypair(raw, WALLET_VARIABLE, seed=True), WALLET_VARIABLE)
    default = DEFAULT_PATH.expanduser()
    if default.exists():
        return _from_file(default)
    raise WalletError(
        NO_WALLET,
        f"Pass a key file with -w FILE or the variable {PATH_VARIABLE}, or put the key into {WALLET_VARIABLE}; "
        "create one: aftermath-solana show-identity --create -w FILE",
    )


def program_keypair(path: Path) -> Keypair:
    """Load the keypair of a program's address. Raises WalletError.

    The file's permissions do not matter: the key is useless once the program is deployed.
    """
    return _keypair(
        path, "create one: aftermath-solana show-identity --create -w FILE", private=False
    )


def create_wallet(path: Path) -> Wallet:
    """Create a new key file (mode 0600, never overwriting) in the Solana CLI's format."""
    refuse_key_as_path(path)
    keypair = Keypair()
    write_key_file(path, keypair)
    return Wallet(keypair, str(path))


def write_key_file(path: Path, keypair: Keypair) -> None:
    """Write `keypair` to a new file of mode 0600, atomically. Raise WalletError if it exists."""
    _write_secret(path, keypair.to_json().encode())


def create_identity(path: Path) -> None:
    """Write 32 new secret bytes to a new file, as `write_key_file` writes a keypair."""
    _write_secret(path.expanduser(), os.urandom(32))


def _write_secret(path: Path, secret: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with parents_made(path.parent):
            _link_new(path, temporary, secret)
    except FileExistsError as error:
        raise WalletError(
            f"{path} exists already", "Choose another path, or use the existing key"
        ) from error
    except OSError as error:
        raise WalletError(
            f"cannot write the key file {path}: {error.strerror or error}", fix_of(error)
        ) from error


def _link_new(path: Path, temporary: Path, secret: bytes) -> None:
    """Write a file under another name and link it to `path`, which fails if that exists."""
    temporary.unlink(missing_ok=True)
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret)
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def identity_secret(
    run_id: str, wallet: Wallet, path: Path | None = None, env: Mapping[str, str] | None = None
) -> bytes:
    """Return the 32-byte secret of the member's ed25519 peer identity.

    Read it from `path` (32 raw bytes or 64 hex digits), else from RAW_IDENTITY_SECRET_KEY (hex).
    Else derive it: sha256("aftermath p2p" || run_id || 32-byte seed of the wallet).
    """
    env = os.environ if env is None else env
    if path is not None:
        how_made = f"create one: aftermath-centralized client show-identity --create -i {shlex.quote(str(path))}"
        secret = _parse_identity(_read_key_file(path.expanduser(), how_made), str(path))
        _warn_if_others_read(path.expanduser())
        return secret
    if raw := env.get(IDENTITY_VARIABLE):
        return _parse_identity(raw.encode(), IDENTITY_VARIABLE)
    return hashlib.sha256(b"aftermath p2p" + run_id.encode() + wallet.keypair.secret()).digest()


def identity_public(secret: bytes) -> bytes:
    """Return the 32-byte public key of an identity secret, as it is on chain."""
    return bytes(Keypair.from_seed(secret).pubkey())


def _from_file(path: Path) -> Wallet:
    how_made = (
        f"create a wallet: aftermath-solana show-identity --create -w {shlex.quote(str(path))}"
    )
    return Wallet(_keypair(path, how_made, private=True), str(path))


def _keypair(path: Path, how_made: str, *, private: bool) -> Keypair:
    raw = _read_key_file(path, how_made)
    try:
        text = raw.decode("ascii")
    except UnicodeDecodeError:
        raise WalletError(
            f"{path} is not a Solana key file", "Use a file with a JSON array of 64 numbers"
        ) from None
    keypair = _parse_keypair(text, str(path))
    if private:
        _warn_if_others_read(path)
    return keypair


def refuse_key_as_path(path: Path) -> None:
    """Raise WalletError if an address or a key was given in the place of a key file's path, and no
    such file exists.

    The error never quotes a key.
    """
    text = str(path)
    if _LOOKS_SECRET.fullmatch(text):
        if not os.path.lexists(text):
            raise WalletError(
                "a private key was passed instead of the path of a key file",
                f"Save the key in a file and pass its path, or put a wallet's key into the variable {WALLET_VARIABLE}",
            )
        return
    try:
        Pubkey.from_string(text)
    except ValueError:
        return
    if not os.path.lexists(text):
        raise WalletError(
            f"{text} is an address, not a key file",
            "Pass the key file of that wallet with -w FILE; to see a file's address: "
            "aftermath-solana show-identity -w FILE",
        )


def _read_key_file(path: Path, how_made: str) -> bytes:
    refuse_key_as_path(path)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_KEY_FILE + 1)
    except FileNotFoundError as error:
        raise WalletError(
            f"there is no key file {path.absolute()}", f"Check the path; {how_made}"
        ) from error
    except OSError as error:
        raise WalletError(
            f"cannot read the key file {path}: {error.strerror}",
            "Check the path and its permissions",
        ) from error
    if len(raw) > MAX_KEY_FILE:
        raise WalletError(f"{path} is too long to be a key file", "Name the file of a Solana key")
    return raw


def _warn_if_others_read(path: Path) -> None:
    """Warn if other users can read a key file. Call it only after the file was parsed as a key."""
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        log.warning("the key file %s can be read by other users; fix it: chmod 600 %s", path, path)


def _parse_keypair(text: str, source: str, *, seed: bool = False) -> Keypair:
    """Parse a JSON array or base58 of 64 bytes, of which the last 32 are the public key of the
    first 32.

    With `seed` a JSON array of the first 32 bytes alone is read too. Raises WalletError, which
    never quotes the text.
    """
    text = text.strip()
    try:
        raw = bytes(json_value(text)) if text.startswith("[") else _base58(text)
        if len(raw) == _SEED and seed and text.startswith("["):
            return Keypair.from_seed(raw)
        if len(raw) != _SEED and bytes(Keypair.from_seed(raw[:_SEED]).pubkey()) == raw[_SEED:]:
            return Keypair.from_bytes(raw)
        # 32 bytes may be an address, and a key with a public seed would be known to everybody.
        problem = (
            "32 bytes, as an address has"
            if len(raw) == _SEED
            else "not a private key followed by its public key"
        )
    except (ValueError, TypeError, RecursionError):
        problem = "neither a JSON array of bytes nor base58"
    raise WalletError(f"{source} is not a Solana private key: it is {problem}", _KEY_FIX)


def _base58(text: str) -> bytes:
    """Decode base58 of 32 or 64 bytes, the two sizes that solders decodes. Raises ValueError
    otherwise.
    """
    if len(text) <= _MOST_ADDRESS:
        return bytes(Pubkey.from_string(text))
    return bytes(Keypair.from_base58_string(text))


def _parse_identity(raw: bytes, source: str) -> bytes:
    if len(raw) == 32:
        return raw
    try:
        secret = bytes.fromhex(raw.decode("ascii").strip())
    except ValueError:
        secret = b""
    if len(secret) != 32:
        raise WalletError(f"{source} is not an identity key", "Use 32 raw bytes or 64 hex digits")
    return secret
