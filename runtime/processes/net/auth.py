"""The handshake of a connection: both ends prove that they know the cluster's token.

    accepting side                          connecting side
    magic (8), nonce a (32)      ────────>
                                 <────────  nonce b (32), kind (1),
                                            MAC(token, "connect" a b kind) (32)
    MAC(token, "accept" a b) (32) ───────>

The MAC is keyed BLAKE2b. Every message has a fixed length, so nothing is decoded
before the proof. The kind is the connection's purpose: the packets of a channel, heartbeats, or
object data.
"""

from __future__ import annotations

import os

# `hashlib` and `hmac` export these under other names, but load OpenSSL: 2 MB in every
# process, of which drivers need nothing else.
from _blake2 import blake2b
from _operator import _compare_digest as compare_digest

MAGIC = b"raytwin1"
NONCE_BYTES = 32
PROOF_BYTES = 32
TOKEN_BYTES = 32
CHALLENGE_BYTES = len(MAGIC) + NONCE_BYTES
ANSWER_BYTES = NONCE_BYTES + 1 + PROOF_BYTES

CHANNEL = b"C"
HEARTBEATS = b"H"
DATA = b"D"


class AuthError(Exception):
    """The peer does not know the token, or does not speak the protocol."""


def new_token() -> bytes:
    """Return a token for a new cluster."""
    return os.urandom(TOKEN_BYTES)


def challenge() -> bytes:
    """Return the accepting side's first message."""
    return MAGIC + os.urandom(NONCE_BYTES)


def answer(token: bytes, challenge: bytes, kind: bytes) -> bytes:
    """Return the connecting side's answer to a challenge; raises AuthError."""
    if len(challenge) != CHALLENGE_BYTES or not challenge.startswith(MAGIC):
        raise AuthError("the other side is not a raytwin cluster")
    nonce = os.urandom(NONCE_BYTES)
    return nonce + kind + _prove(token, b"connect", challenge, nonce, kind)


def check(token: bytes, challenge: bytes, answer: bytes) -> tuple[bytes, bytes]:
    """Return (kind, the accepting side's own proof); raises AuthError."""
    nonce, kind, proof = answer[:32], answer[32:33], answer[33:]
    if not compare_digest(proof, _prove(token, b"connect", challenge, nonce, kind)):
        raise AuthError("the other side does not know the cluster's token")
    if kind not in (CHANNEL, HEARTBEATS, DATA):
        raise AuthError(f"unknown kind of connection {kind!r}")
    return kind, _prove(token, b"accept", challenge, nonce, kind)


def check_acceptor(token: bytes, challenge: bytes, answer: bytes, proof: bytes) -> None:
    """Check the accepting side's proof; raises AuthError."""
    nonce, kind = answer[:32], answer[32:33]
    if not compare_digest(proof, _prove(token, b"accept", challenge, nonce, kind)):
        raise AuthError("the side that accepted does not know the cluster's token")


def _prove(token: bytes, role: bytes, challenge: bytes, nonce: bytes, kind: bytes) -> bytes:
    mac = blake2b(role + challenge + nonce + kind, key=token, digest_size=PROOF_BYTES)
    return mac.digest()
