"""A certificate authority for the tests, and a server's certificate of it, made anew for every run."""

from __future__ import annotations

import atexit
import datetime
import ipaddress
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


class Certificates(NamedTuple):
    """Files: who trusts the authority trusts the server, which is 127.0.0.1 and localhost."""

    authority: Path
    server: Path


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
    made = Certificates(folder / "authority.pem", folder / "server.pem")
    made.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    key = server_key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    made.server.write_bytes(server.public_bytes(serialization.Encoding.PEM) + key)
    return made


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    signer: ec.EllipticCurvePrivateKey,
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    names = [
        x509.DNSName("localhost"),
        x509.DNSName("registry.invalid"),
        x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    ]
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - DAY)
        .not_valid_after(now + DAY)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if issuer is not None:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(signer, hashes.SHA256())
