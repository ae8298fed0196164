"""Keys of a cluster."""

from __future__ import annotations

import os

from hutch.cluster.encryption import AnnouncementKey, NodeKey

SECRET = "s" * 32
NONCE = bytes(12)


def test_both_ends_of_a_link_have_the_same_keys() -> None:
    front, worker, id = NodeKey(), NodeKey(), os.urandom(16)
    mine = front.link_keys(worker.public, SECRET, id)
    theirs = worker.link_keys(front.public, SECRET, id)
    for one, other in zip(mine, theirs, strict=True):
        assert other.decrypt(NONCE, one.encrypt(NONCE, b"x", b""), b"") == b"x"


def test_keys_depend_on_secret_link_and_direction() -> None:
    front, worker, id = NodeKey(), NodeKey(), os.urandom(16)
    sealed = front.link_keys(worker.public, SECRET, id).to_worker.encrypt(NONCE, b"x", b"")
    keys = worker.link_keys(front.public, SECRET, id)
    other_secret = worker.link_keys(front.public, "t" * 32, id)
    other_link = worker.link_keys(front.public, SECRET, os.urandom(16))
    other_node = NodeKey().link_keys(front.public, SECRET, id)
    texts = [
        key.encrypt(NONCE, b"x", b"")
        for key in (keys.to_front, other_secret.to_worker, other_link.to_worker, other_node.to_worker)
    ]
    assert sealed == keys.to_worker.encrypt(NONCE, b"x", b"")
    assert sealed not in texts


def test_announcement_of_another_cluster_secret_or_subject_is_refused() -> None:
    sealed = AnnouncementKey(SECRET, "one").seal(b"here", "workers")
    assert AnnouncementKey(SECRET, "one").open(sealed, "workers") == b"here"
    assert AnnouncementKey(SECRET, "one").open(sealed, "fronts") is None
    assert AnnouncementKey(SECRET, "two").open(sealed, "workers") is None
    assert AnnouncementKey("t" * 32, "one").open(sealed, "workers") is None
    assert AnnouncementKey(SECRET, "one").open(sealed[:5], "workers") is None
