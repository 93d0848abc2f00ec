# SPDX-License-Identifier: Apache-2.0
"""Credentials of requests, from libraries of clouds and from functions of the program.

The engine calls supplier_of() and library() for a URL's scheme, and again before the credentials expire.
"""

from __future__ import annotations

import contextlib
import importlib
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from . import _native

# Keys that sign, header fields, and the end in seconds since 1970.
Supplied = tuple[str, str, str, list[tuple[str, str]], float | None]
Supplier = Callable[[str], Supplied]

NONE: Supplied = ("", "", "", [], None)
GOOGLE_SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"
AZURE_SCOPE = "https://storage.azure.com/.default"
AZURE_VERSION = "2024-11-04"  # requests with a token need one
# Libraries renew their credentials themselves, if they are asked.
OFTEN = 600.0

# The kinds of `credentials=`, and the attributes by which gpurx knows them.
KINDS = "a session or credentials of botocore, credentials of google.auth or azure.identity, or a function"


def supplier_of(given: Any) -> Supplier:
    """Return the function that the engine calls for `credentials=`. Raise a TypeError if it is none of KINDS."""
    for attribute, convert in _CONVERSIONS.items():
        if hasattr(given, attribute):
            return lambda _: convert(given)
    if not callable(given):
        raise TypeError(f"credentials must be {KINDS}, not {type(given).__name__}")
    return lambda scheme: _of_result(given(), scheme)


def library(profile: str) -> Supplier:
    """Return the function that the engine calls if it finds no credentials itself: it asks the cloud's library, if installed."""

    def ask(scheme: str) -> Supplied:
        library, found, how = _google() if scheme == "gs" else _azure() if scheme == "az" else _botocore(profile)
        if found is None:
            return NONE
        result = supplier_of(found)(scheme)
        _native.note(f"{scheme}: {library} supplies the credentials ({how}), because gpurx finds none itself")
        return result

    return ask


def _botocore(profile: str) -> tuple[str, Any, str]:
    botocore = _installed("botocore.session")
    found = botocore.Session(profile=profile or None).get_credentials() if botocore else None
    return "botocore", found, found.method if found else ""


def _google() -> tuple[str, Any, str]:
    auth, found = _installed("google.auth"), None
    if auth:
        with contextlib.suppress(auth.exceptions.DefaultCredentialsError):
            found, _ = auth.default(scopes=[GOOGLE_SCOPE])
    return "google.auth", found, type(found).__name__


def _azure() -> tuple[str, Any, str]:
    identity, found = _installed("azure.identity"), None
    if identity:
        default = identity.DefaultAzureCredential()
        try:
            default.get_token(AZURE_SCOPE)  # it keeps the token
            found = default
        except importlib.import_module("azure.core.exceptions").ClientAuthenticationError as error:
            reason = str(error).partition("\n")[0]
            _native.note(f"az: azure.identity supplies no credentials, so requests are anonymous: {reason}")
    return "azure.identity", found, type(found).__name__


def _installed(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _of_session(session: Any) -> Supplied:
    if (found := session.get_credentials()) is None:
        raise ValueError("the session of botocore has no credentials")
    return _of_keys(found)


def _of_keys(found: Any) -> Supplied:
    frozen = found.get_frozen_credentials()
    end = time.time() + OFTEN if hasattr(found, "refresh_needed") else None
    return frozen.access_key or "", frozen.secret_key or "", frozen.token or "", [], end


def _of_google(found: Any) -> Supplied:
    if not found.valid:
        found.refresh(importlib.import_module("google.auth.transport.requests").Request())
    headers: dict[str, str] = {}
    found.apply(headers)
    end = None if found.expiry is None else found.expiry.replace(tzinfo=timezone.utc).timestamp()
    return "", "", "", list(headers.items()), end


def _of_azure(found: Any) -> Supplied:
    token = found.get_token(AZURE_SCOPE)
    return "", "", "", [("Authorization", f"Bearer {token.token}"), ("x-ms-version", AZURE_VERSION)], float(token.expires_on)


_CONVERSIONS: dict[str, Callable[[Any], Supplied]] = {
    "get_frozen_credentials": _of_keys,
    "get_credentials": _of_session,
    "before_request": _of_google,
    "get_token": _of_azure,
}


def _of_result(found: Any, scheme: str) -> Supplied:
    """Convert the result of a function: keys or header fields, a pair of header fields and their end, or one of KINDS."""
    if isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], Mapping):
        return "", "", "", _fields(found[0]), _end(found[1])
    if isinstance(found, Mapping):
        return _of_mapping(found)
    if callable(found) or found is None:
        raise TypeError(f"the function for credentials must return header fields, keys or other credentials, not {type(found).__name__}")
    return supplier_of(found)(scheme)


def _of_mapping(found: Mapping[Any, Any]) -> Supplied:
    if "AccessKeyId" not in found:
        return "", "", "", _fields(found), None
    token = found.get("SessionToken") or found.get("Token") or ""
    keys = found["AccessKeyId"], found.get("SecretAccessKey") or "", token
    if not all(isinstance(one, str) for one in keys):
        raise TypeError("AccessKeyId, SecretAccessKey and SessionToken of the function for credentials must be str")
    return *keys, [], _end(found.get("Expiration"))


def _fields(found: Mapping[Any, Any]) -> list[tuple[str, str]]:
    if not all(isinstance(one, str) for pair in found.items() for one in pair):
        raise TypeError("header fields of the function for credentials must be a mapping of str to str")
    return list(found.items())


def _end(value: Any) -> float | None:
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError("the end of credentials must be a datetime with a time zone, or seconds since 1970")
        return value.timestamp()
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return None if value is None else float(value)
    raise TypeError(f"the end of credentials must be a datetime or seconds since 1970, not {type(value).__name__}")
