"""Keys of a cluster: the key of announcements, and the keys of the link between a front and a worker.

All machines know the cluster's secret. Each process also has an X25519 key pair, which it never stores. The
keys of a link are derived from the secret and from the key pairs of both ends. So another machine of the
cluster can neither read nor forge the packets of the link, although it knows the secret.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

NONCE_BYTES = 12
PUBLIC_KEY_BYTES = 32


class LinkKeys(NamedTuple):
    """Keys of the two directions of a link."""

    to_worker: AESGCM
    to_front: AESGCM


class NodeKey:
    """The key pair of one process."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw()

    def link_keys(self, peer: bytes, secret: str, link_id: bytes) -> LinkKeys:
        """Derives the keys of a link from both key pairs and the cluster's secret. Raises ValueError if
        `peer` is not a public key.
        """
        shared = self._private.exchange(X25519PublicKey.from_public_bytes(peer))
        material = _derive(shared + secret.encode(), salt=link_id, info=b"hutch link", length=64)
        return LinkKeys(AESGCM(material[:32]), AESGCM(material[32:]))


class AnnouncementKey:
    """Encrypts announcements, which all machines of a cluster may read."""

    def __init__(self, secret: str, cluster: str) -> None:
        self._cipher = AESGCM(_derive(secret.encode(), cluster.encode(), b"hutch announcements", 32))

    def seal(self, data: bytes, subject: str) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, data, subject.encode())

    def open(self, sealed: bytes, subject: str) -> bytes | None:
        """Returns None if the data was not sealed with the cluster's secret for this subject."""
        return open_sealed(self._cipher, sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], subject.encode())


def open_sealed(cipher: AESGCM, nonce: bytes, data: bytes, associated: bytes) -> bytes | None:
    """Decrypts data. Returns None if it is not authentic."""
    try:
        return cipher.decrypt(nonce, data, associated)
    except (InvalidTag, ValueError):
        return None


def _derive(material: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(algorithm=SHA256(), length=length, salt=salt, info=info).derive(material)
