"""Gate: which requests reach the page.

It stands before every route of Gradio, some of which ask for no login, fetch addresses of other machines or read files
that are not the page's. What the page does not need is not there; what is refused gets a sentence.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from ddm.explorer import upload
from ddm.explorer.quota import taken

TOKEN = "token"
"""The part of an address that holds it."""

_FILE = "/gradio_api/file="
_JOIN = "/gradio_api/queue/join"
_UPLOAD = "/gradio_api/upload"

_READ = re.compile(
    r"/|/(config|theme\.css|favicon\.ico|manifest\.json)|/(assets|static)/.+"
    r"|/gradio_api/(queue/data|upload_progress|heartbeat/\w+|file=.+)"
)
_WRITTEN = re.compile(rf"{_JOIN}|{_UPLOAD}|/gradio_api/(cancel|reset)")
"""What the page asks for, and what it sends to."""

_FORM_ERRORS = (AttributeError, KeyError, TypeError, ValueError)
"""What Gradio raises on forms without a file, without a file name or without a boundary."""

_MOST_SENT = 2**20
_MOST_STORED = 2**28
"""Bytes of a request that is no picture, and of all files that visitors have sent and Gradio has not yet removed."""

_HEADERS = {
    "content-security-policy": "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; frame-ancestors 'self'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""What a browser may load: nothing from elsewhere, whatever Gradio's page asks for; and nothing of it elsewhere."""


class _RefusedError(Exception):
    """A request that goes no further, with the status and the sentence that it gets."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class Gate:
    """An ASGI application before another one.

    app:    the other one
    folder: the only folder whose files a request may name
    token:  the secret that every visitor needs, in the address once and in a cookie afterwards
    local:  only requests to this machine's own names are answered, such as localhost
    """

    app: Any
    folder: Path
    token: str
    local: bool

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, _with_headers(send))
        else:
            await send({"type": "websocket.close", "reason": "The page uses no web sockets."})

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            headers = Headers(scope=scope)
            self._check_origin(headers)
            answer = self._check_token(scope, headers)
            if answer is None:
                receive = await self._checked(scope, headers, receive)
        except _RefusedError as refused:
            answer = PlainTextResponse(f"{refused}\n", refused.status)
        if answer is None and scope["path"] == _UPLOAD:
            await self._upload(scope, receive, send)
        else:
            await (answer or self.app)(scope, receive, send)

    async def _upload(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass on an upload. Where Gradio fails on a form, the visitor gets a sentence instead of its error 500."""
        try:
            await self.app(scope, receive, _without_failures(send))
        except _FORM_ERRORS:
            answer = PlainTextResponse("The upload has no file with a name: drop the picture on the page.\n", 400)
            await answer(scope, receive, send)

    def _check_origin(self, headers: Headers) -> None:
        """A page of another site must not ask, not even where its name was made to lead here."""
        host = headers.get("host", "").lower()
        if self.local and not loopback(_name(host)):
            raise _RefusedError(403, "The page is for this machine only: open the address that ddm explore printed.")
        origin = headers.get("origin")
        if origin is not None and origin.lower().partition("://")[2] != host:
            raise _RefusedError(403, "Another site may not ask here: open the page itself.")
        fetched, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
        if fetched in ("cross-site", "same-site") and mode != "navigate":
            raise _RefusedError(403, "Another site may not ask here: open the page itself.")

    def _check_token(self, scope: Any, headers: Headers) -> Response | None:
        """None if the cookie has the token; if the address has it, a page that sets the cookie and goes on."""
        cookie = f"ddm-explore-{(scope.get('server') or ('', 0))[1]}"
        if self._right(cookie_parser(headers.get("cookie", "")).get(cookie, "")):
            return None
        parts = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if not any(name == TOKEN and self._right(value) for name, value in parts):
            raise _RefusedError(401, f"A token is needed: open the address with ?{TOKEN}=… that ddm explore printed.")
        return self._welcome(scope, cookie, [part for part in parts if part[0] != TOKEN])

    def _right(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.token.encode())

    def _welcome(self, scope: Any, cookie: str, rest: list[tuple[str, str]]) -> Response:
        """Goes on by itself. A redirection would not bring the strict cookie along for who came by a link elsewhere."""
        onwards = escape("?" + urlencode(rest, safe="/"))
        answer = HTMLResponse(
            f"<!doctype html><meta http-equiv='refresh' content='0;url={onwards}'><a href='{onwards}'>Go on</a>",
            headers={"cache-control": "no-store"},
        )
        secure = scope.get("scheme") == "https"
        answer.set_cookie(cookie, self.token, httponly=True, samesite="strict", secure=secure)
        return answer

    async def _checked(self, scope: Any, headers: Headers, receive: Any) -> Any:
        """How the rest of a request is received, once its path, its size and the files that it names are checked."""
        path, reads = scope["path"], scope["method"] in ("GET", "HEAD")
        if not (_READ if reads else _WRITTEN).fullmatch(path) or scope["method"] not in ("GET", "HEAD", "POST"):
            raise _RefusedError(404, "There is nothing here.")
        if path.startswith(_FILE):
            self._check_file(path.removeprefix(_FILE))
        if reads:
            return receive
        _check_length(path, headers)
        if path == _UPLOAD:
            await self._check_room()
            return receive
        body = await _body(receive)
        self._check_body(body)
        return _again(body, receive)

    async def _check_room(self) -> None:
        """Counted in a thread: meanwhile other visitors are answered."""
        if await asyncio.to_thread(taken, self.folder) > _MOST_STORED:
            raise _RefusedError(503, "Too many pictures were dropped here of late: try again in an hour.")

    def _check_body(self, body: bytes) -> None:
        try:
            for path in _paths(json.loads(body)):
                self._check_file(path)
        except (ValueError, RecursionError):
            raise _RefusedError(400, "The request cannot be read.") from None

    def _check_file(self, path: Any) -> None:
        """Only files that were sent or made here: no others of this machine, and no addresses."""
        try:
            inside = Path(path).is_absolute() and Path(path).resolve().is_relative_to(self.folder.resolve())
            known = inside and Path(path).is_file()
        except (TypeError, ValueError, OSError, RuntimeError):
            known = False
        if not known:
            raise _RefusedError(403, "There is no such file here: drop the picture on the page.")


def loopback(name: str) -> bool:
    """Whether a name in an address can mean nothing but this machine."""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _name(host: str) -> str:
    """The name in a Host header, without its port and brackets."""
    return re.sub(r":\d*$", "", host).strip("[]")


def _check_length(path: str, headers: Headers) -> None:
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        raise _RefusedError(411, "The request does not say how long it is.")
    most = upload.MOST_BYTES + _MOST_SENT if path == _UPLOAD else _MOST_SENT
    if len(length) > 12 or int(length) > most:
        raise _RefusedError(413, f"The request has more than {most // 2**20} MB: give a smaller file.")


def _paths(value: Any) -> Iterator[Any]:
    """Everything in a request that Gradio could take for the path of a file."""
    if isinstance(value, dict):
        if "path" in value:
            yield value["path"]
        for part in value.values():
            yield from _paths(part)
    elif isinstance(value, list):
        for part in value:
            yield from _paths(part)


async def _body(receive: Any) -> bytes:
    """The body of a request, whose length was checked."""
    parts = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise _RefusedError(400, "The request ended too early.")
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _again(body: bytes, receive: Any) -> Any:
    """Gives a body that was read once more, then what follows."""
    given = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def received() -> Any:
        return next(given, None) or await receive()

    return received


def _without_failures(send: Any) -> Any:
    """Holds back an answer with status 500: whoever catches the error sends another."""
    failed = False

    async def sent(message: Any) -> None:
        nonlocal failed
        failed = failed or message.get("status") == 500
        if not failed:
            await send(message)

    return sent


def _with_headers(send: Any) -> Any:
    """Adds ``_HEADERS`` to every answer."""

    async def sent(message: Any) -> None:
        if message["type"] == "http.response.start":
            added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            message["headers"] = [*message.get("headers", []), *added]
        await send(message)

    return sent
