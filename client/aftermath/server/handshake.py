"""Build and check the three messages of the handshake: challenge, answer, verdict.

A member signs a prefix, the run, the server's nonce and its two public keys: once with its identity
key and once with its peer key. So nobody can impersonate it, and an answer is valid for one
connection. A proxy can forward messages but cannot sign. Only TLS excludes proxies.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec
from msgspec import Meta
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.signature import Signature

from aftermath.base.bounded import Malformed, json_as
from aftermath.rules.limits import RUN_ID_BYTES

MAX_HANDSHAKE_BYTES = 2048
"""Maximum size of each message."""
NONCE_BYTES = 32
_DOMAIN = b"aftermath central greeting 1\x00"

Hex32 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Hex64 = Annotated[str, Meta(pattern="^[0-9a-f]{128}$")]
Text = Annotated[str, Meta(max_length=400)]


class Challenge(msgspec.Struct, frozen=True, tag="challenge", forbid_unknown_fields=True):
    """The server's run, its chain's genesis hash, and the nonce that the client must sign."""

    run_id: Annotated[str, Meta(min_length=1, max_length=RUN_ID_BYTES)]
    genesis: Annotated[str, Meta(max_length=64)]
    nonce: Hex32


class Answer(msgspec.Struct, frozen=True, tag="answer", forbid_unknown_fields=True):
    """The client's identity key and peer key, and a signature of each."""

    identity: Hex32
    peer: Hex32
    identity_signature: Hex64
    peer_signature: Hex64


class Welcome(msgspec.Struct, frozen=True, tag="welcome", forbid_unknown_fields=True):
    """The member is admitted. JSON-RPC messages follow."""


class Denied(msgspec.Struct, frozen=True, tag="refusal", forbid_unknown_fields=True):
    """The server refuses the member. `for_now` is true if a later attempt may succeed."""

    message: Text
    fix: Text = ""
    for_now: bool = False


def signed_message(challenge: Challenge, identity: bytes, peer: bytes) -> bytes:
    """Return the bytes that both keys sign."""
    run = hashlib.sha256(challenge.run_id.encode()).digest()
    return _DOMAIN + run + bytes.fromhex(challenge.nonce) + identity + peer


def sign_answer(challenge: Challenge, identity: Keypair, peer: Keypair) -> bytes:
    """Return the encoded answer to a challenge."""
    message = signed_message(challenge, bytes(identity.pubkey()), bytes(peer.pubkey()))
    return msgspec.json.encode(
        Answer(
            bytes(identity.pubkey()).hex(),
            bytes(peer.pubkey()).hex(),
            bytes(identity.sign_message(message)).hex(),
            bytes(peer.sign_message(message)).hex(),
        )
    )


def verify_answer(challenge: Challenge, data: bytes | str) -> tuple[bytes, bytes]:
    """Return the identity and peer key that an answer proves. Raises Malformed."""
    received: Answer = json_as(_check_size(data), Answer)
    identity = bytes.fromhex(received.identity)
    peer = bytes.fromhex(received.peer)
    message = signed_message(challenge, identity, peer)
    signatures = ((identity, received.identity_signature), (peer, received.peer_signature))
    for key, signature in signatures:
        if not Signature(bytes.fromhex(signature)).verify(Pubkey(key), message):
            raise Malformed("a signature does not match its key")
    return identity, peer


def parse_challenge(data: bytes | str) -> Challenge:
    """Return the server's challenge. Raises Malformed."""
    challenge: Challenge = json_as(_check_size(data), Challenge)
    return challenge


def parse_verdict(data: bytes | str) -> Welcome | Denied:
    """Return the server's verdict. Raises Malformed."""
    verdict: Welcome | Denied = json_as(_check_size(data), Welcome | Denied)
    return verdict


def _check_size(data: bytes | str) -> bytes | str:
    if len(data) > MAX_HANDSHAKE_BYTES:
        raise Malformed(f"a handshake message of more than {MAX_HANDSHAKE_BYTES} bytes")
    return data
