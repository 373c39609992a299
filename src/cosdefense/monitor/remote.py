"""Reads the state of a run from the server of `cosdefense watch` on another computer."""

from __future__ import annotations

import json
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from ..runs.safe_text import printable
from .view import Json

MAX_BYTES = 16_000_000
TIMEOUT = 10.0  # seconds


class WatchServerError(RuntimeError):
    """The server cannot be reached, or answers with something else."""


class _RefuseRedirects(HTTPRedirectHandler):
    """The token must not go to another address."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


class RemoteRun:
    """Asks a server for the state of its run."""

    def __init__(self, url: str, token: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"an address must be http://HOST:PORT or https://HOST:PORT, got {url!r}")
        if parts.username or parts.password:
            raise ValueError("an address must not hold a user or password: the token comes from the environment")
        self._url = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}/state.json"
        self._token, self._tag = token, ""
        self._opener = build_opener(_RefuseRedirects)
        self._content: Json = {}

    def snapshot(self) -> Json:
        """The present state. What has not changed is not sent again."""
        request = Request(self._url, headers={"If-None-Match": self._tag} if self._tag else {})
        if self._token:
            request.add_unredirected_header("Authorization", f"Bearer {self._token}")
        try:
            with self._opener.open(request, timeout=TIMEOUT) as response:
                body, tag = response.read(MAX_BYTES + 1), str(response.headers.get("ETag", ""))
        except HTTPError as error:
            if error.code == 304:
                return self._content
            raise WatchServerError(f"{self._url} answered {error.code}{_explain(error.code)}") from error
        except (OSError, HTTPException) as error:
            reason = error.reason if isinstance(error, URLError) else error
            raise WatchServerError(f"{self._url} cannot be read: {printable(reason)}") from error
        self._content, self._tag = _parse(body, self._url), tag
        return self._content


def _explain(code: int) -> str:
    if code == 401:
        return ": the token in COSDEFENSE_WATCH_TOKEN is missing or wrong"
    return ", which is an address elsewhere" if 300 <= code < 400 else ""


def _parse(body: bytes, url: str) -> Json:
    try:
        content = json.loads(body) if len(body) <= MAX_BYTES else None
    except ValueError:
        content = None
    if not isinstance(content, dict) or not isinstance(content.get("status"), str):
        raise WatchServerError(f"{url} is not the state of a run: is this a server of cosdefense watch?")
    return content
