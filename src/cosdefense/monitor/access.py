"""Who may read the page of a run: this computer, or whoever knows the token."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MIN_TOKEN = 16  # characters
TOKEN_VARIABLE = "COSDEFENSE_WATCH_TOKEN"

HEADERS = {
    # Only the page's own files: no other address, no script or style inside the page, no frame around it.
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Address:
    """Where to listen."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """From HOST:PORT; an IPv6 address stands in brackets."""
        host, separator, port = text.rpartition(":")
        if not separator or not host or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"an address must be HOST:PORT, got {text!r}")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this computer can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def check_token(address: Address, token: str | None) -> None:
    """Raise ValueError if other computers could read the page without a token, or with one that is easy to guess."""
    if token is None and not address.is_loopback:
        raise ValueError(
            f"{address} can be reached from other computers, which needs a token: set {TOKEN_VARIABLE} to a secret of "
            f"at least {MIN_TOKEN} characters, for example from: openssl rand -hex 32"
        )
    if token is not None and (len(token) < MIN_TOKEN or not token.isascii() or not token.isprintable()):
        raise ValueError(f"{TOKEN_VARIABLE} needs at least {MIN_TOKEN} plain characters, got {len(token)}")


class Guard:
    """Wraps an application: refuses requests that may not read it, and adds security headers to all responses."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"{scope['type']} is not supported")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"], *((key.encode(), value.encode()) for key, value in HEADERS.items())
                ]  # fmt: skip
            await send(message)

        refusal = self._refuse(Headers(scope=scope))
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refuse(self, headers: Headers) -> Response | None:
        if self._token is not None:
            if is_authorized(headers.get("authorization", ""), self._token):
                return None
            challenge = {"www-authenticate": 'Basic realm="cosdefense watch: any user, the token as password"'}
            return PlainTextResponse("the token is missing or wrong\n", 401, challenge)
        # Without a token, a web page of somebody else could read this one if its name were made to point here.
        host = headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        is_here = Address(name.removeprefix("[").removesuffix("]"), 0).is_loopback
        return None if is_here else PlainTextResponse("unknown host\n", 421)


def is_authorized(authorization: str, token: str) -> bool:
    """`Bearer <token>`, or `Basic` with the token as password: what a browser asks for and then sends by itself."""
    kind, _, credentials = authorization.partition(" ")
    given = credentials.strip()
    if kind.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).decode().partition(":")[2]
        except (binascii.Error, ValueError):
            return False
    elif kind.lower() != "bearer":
        return False
    return hmac.compare_digest(given.encode(), token.encode())
