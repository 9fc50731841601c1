"""The TLS side of an access."""

from __future__ import annotations

import os
import ssl
import tempfile
from pathlib import Path

from trainjob.cluster.kube.access import Access, InvalidAccess


def build_tls(access: Access) -> ssl.SSLContext:
    """Return the context to connect with.

    Raises:
        InvalidAccess: a certificate or key can't be read.
    """
    try:
        context = ssl.create_default_context(cafile=_path(access.ca_file), cadata=access.ca_data)
        # Clusters' own authorities are often older than the rules for public ones.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if access.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        _load_client_certificate(context, access)
    except (OSError, ssl.SSLError) as error:
        raise InvalidAccess(f"certificates for {access.server} can't be used: {error}") from error
    return context


def _load_client_certificate(context: ssl.SSLContext, access: Access) -> None:
    if access.certificate_file is None and access.certificate_data is None:
        return
    # Python's ssl reads keys from files only: this one is the owner's alone, and gone at once.
    with tempfile.TemporaryDirectory(prefix="trainjob-") as folder:
        certificate = access.certificate_file or _write(folder, "certificate", access.certificate_data)
        key = access.key_file or (_write(folder, "key", access.key_data) if access.key_data else None)
        context.load_cert_chain(certificate, key)


def _write(folder: str, name: str, data: str | None) -> Path:
    path = Path(folder, name)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(data or "")
    return path


def _path(file: Path | None) -> str | None:
    return str(file) if file is not None else None
