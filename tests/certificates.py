"""Certificates for servers of tests that use TLS."""

from pathlib import Path
from typing import NamedTuple

import trustme


class Certificate(NamedTuple):
    """The file of a certificate authority, and the files of a certificate that it signed and of its key."""

    authority: Path
    chain: Path
    key: Path


def new_certificate(folder: Path) -> Certificate:
    """Create a certificate of 127.0.0.1 in a folder."""
    files = Certificate(folder / "authority.pem", folder / "chain.pem", folder / "key.pem")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(files.authority)
    files.chain.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(files.key)
    return files
