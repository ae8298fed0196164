"""Certificate authority and server certificate for the tests, created anew in every run."""

from __future__ import annotations

import atexit
import datetime
import ipaddress
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Certificates(NamedTuple):
    """PEM files of the authority and of a server certificate for 127.0.0.1 and localhost."""

    authority: Path
    server: Path
    bad: dict[str, Path]
    """Certificates that must not be trusted, by their fault."""


@cache
def certificates() -> Certificates:
    folder = Path(tempfile.mkdtemp(prefix="hutch-test-certificates-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    authority_key, server_key = (
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP256R1()),
    )
    authority = _certificate("Hutch test authority", authority_key, None, authority_key)
    server = _certificate("localhost", server_key, authority, authority_key)
    bad = {
        "expired": _certificate("localhost", server_key, authority, authority_key, days=(-2, -1)),
        "not yet valid": _certificate("localhost", server_key, authority, authority_key, days=(1, 2)),
        "wrong name": _certificate("localhost", server_key, authority, authority_key, names=["evil.example"]),
        "no name": _certificate("127.0.0.1", server_key, authority, authority_key, names=[]),
        "self-signed": _certificate("localhost", server_key, None, server_key, names=["127.0.0.1"]),
        "issued by a server": _certificate("localhost", server_key, server, server_key),
    }
    files = Certificates(
        folder / "authority.pem", folder / "server.pem", {name: folder / f"{name}.pem" for name in bad}
    )
    files.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    key = server_key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    for file, certificate in ((files.server, server), *((files.bad[name], bad[name]) for name in bad)):
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM) + key)
    return files


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    signer: ec.EllipticCurvePrivateKey,
    *,
    days: tuple[int, int] = (-1, 1),
    names: Sequence[str] = ("localhost", "registry.invalid", "127.0.0.1"),
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + days[0] * DAY)
        .not_valid_after(now + days[1] * DAY)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if issuer is not None and names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general_name(each) for each in names]), critical=False
        )
    return builder.sign(signer, hashes.SHA256())


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
