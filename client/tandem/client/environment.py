"""What a client takes from the environment where it is given no address: the variables of the command line."""

from __future__ import annotations

import os
from pathlib import Path

from tandem.client.errors import ConfigurationError
from tandem.client.settings import Credentials

TOKENIZER_VARIABLE = "TANDEM_TOKENIZER_ADDRESS"
WORKER_VARIABLE = "TANDEM_WORKER_ADDRESS"  # several are separated by commas


def addresses_in_environment() -> tuple[str | None, str | None]:
    """Returns the tokenizer's address and the workers', each None where its variable is not set."""
    return os.environ.get(TOKENIZER_VARIABLE) or None, os.environ.get(WORKER_VARIABLE) or None


def credentials_in_environment() -> Credentials | None:
    """Returns the credentials of the TANDEM_* variables; None where neither TANDEM_CA_FILE nor TANDEM_TOKEN_FILE is
    set. Raises ConfigurationError."""
    ca, certificate, key, token = (
        os.environ.get(f"TANDEM_{name}_FILE") or None for name in ("CA", "CERTIFICATE", "KEY", "TOKEN")
    )
    if ca is None and token is None:
        return None
    return Credentials(
        tls=ca is not None,
        root_certificates=ca,
        certificate_chain=certificate if ca else None,
        private_key=key if ca else None,
        server_name=os.environ.get("TANDEM_SERVER_NAME") or None,
        bearer_token=None if token is None else _token(token),
    )


def first_token(text: str) -> str:
    """Returns the first token of a token file: one on each line; empty lines and those that begin with # are
    skipped."""
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith("#")), "")


def _token(file: str) -> str:
    try:
        found = first_token(Path(file).read_text("utf-8"))
    except UnicodeDecodeError:  # its own words would quote the file
        raise ConfigurationError(f"TANDEM_TOKEN_FILE {file}: is not UTF-8 text") from None
    except OSError as error:
        raise ConfigurationError(f"TANDEM_TOKEN_FILE {file}: {error.strerror}") from None
    if not found:
        raise ConfigurationError(f"TANDEM_TOKEN_FILE {file}: holds no token")
    return found
