"""The first three messages of a connection: the server's challenge, the member's answer, and whether it may stay.

Decided: JSON texts of fixed fields. The member proves two keys at once, its identity (the wallet that signs what it
sends) and the key its peers know it by, with signatures over a prefix, the run, the server's random nonce and both
keys; so nobody can speak for another, and an answer is good for one connection only. Who stands between the two
unseen can pass the answer on, but cannot sign anything: against that, and against readers, there is TLS.
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

MAX_GREETING = 2048
"""Bytes of any of the three."""
NONCE_BYTES = 32
_DOMAIN = b"aftermath central greeting 1\x00"

Hex32 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Hex64 = Annotated[str, Meta(pattern="^[0-9a-f]{128}$")]
Text = Annotated[str, Meta(max_length=400)]


class Challenge(msgspec.Struct, frozen=True, tag="challenge", forbid_unknown_fields=True):
    """The server keeps run `run_id` on the chain of this `genesis`. The client signs `nonce`."""

    run_id: Annotated[str, Meta(min_length=1, max_length=RUN_ID_BYTES)]
    genesis: Annotated[str, Meta(max_length=64)]
    nonce: Hex32


class Answer(msgspec.Struct, frozen=True, tag="answer", forbid_unknown_fields=True):
    """Who is there: both keys and a signature of each."""

    identity: Hex32
    peer: Hex32
    identity_signature: Hex64
    peer_signature: Hex64


class Welcome(msgspec.Struct, frozen=True, tag="welcome", forbid_unknown_fields=True):
    """The member may stay; from here on the connection carries JSON-RPC."""


class Denied(msgspec.Struct, frozen=True, tag="refusal", forbid_unknown_fields=True):
    """It may not, and why; `for_now`: what it is refused for may pass by itself."""

    message: Text
    fix: Text = ""
    for_now: bool = False


def statement(challenge: Challenge, identity: bytes, peer: bytes) -> bytes:
    """What both keys sign."""
    run = hashlib.sha256(challenge.run_id.encode()).digest()
    return _DOMAIN + run + bytes.fromhex(challenge.nonce) + identity + peer


def answer(challenge: Challenge, identity: Keypair, peer: Keypair) -> bytes:
    """The member's answer, as it is sent."""
    said = statement(challenge, bytes(identity.pubkey()), bytes(peer.pubkey()))
    return msgspec.json.encode(
        Answer(
            bytes(identity.pubkey()).hex(),
            bytes(peer.pubkey()).hex(),
            bytes(identity.sign_message(said)).hex(),
            bytes(peer.sign_message(said)).hex(),
        )
    )


def proven(challenge: Challenge, data: bytes | str) -> tuple[bytes, bytes]:
    """Return (identity, peer key) of an answer's sender. Raises Malformed if it proves nothing."""
    found: Answer = json_as(_short(data), Answer)
    identity, peer = bytes.fromhex(found.identity), bytes.fromhex(found.peer)
    said = statement(challenge, identity, peer)
    for key, signature in ((identity, found.identity_signature), (peer, found.peer_signature)):
        if not Signature(bytes.fromhex(signature)).verify(Pubkey(key), said):
            raise Malformed("the signature is not that of the key")
    return identity, peer


def challenged(data: bytes | str) -> Challenge:
    """What a server begins with. Raises Malformed."""
    found: Challenge = json_as(_short(data), Challenge)
    return found


def admitted(data: bytes | str) -> Welcome | Denied:
    """How a server ends the greeting. Raises Malformed."""
    found: Welcome | Denied = json_as(_short(data), Welcome | Denied)
    return found


def _short(data: bytes | str) -> bytes | str:
    if len(data) > MAX_GREETING:
        raise Malformed(f"a greeting of more than {MAX_GREETING} bytes")
    return data
