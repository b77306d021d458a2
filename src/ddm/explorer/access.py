"""Access control: which requests reach the page.

Every request is checked before Gradio sees it, because some of Gradio's routes need no login, fetch addresses of other
machines, or read files outside the page. Routes that the page does not use answer 404. Refused requests get a sentence.
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
from ddm.explorer.quota import folder_bytes

TOKEN = "token"
"""Name of the query parameter that holds the token."""

_FILE = "/gradio_api/file="
_JOIN = "/gradio_api/queue/join"
_UPLOAD = "/gradio_api/upload"

_READABLE = re.compile(
    r"/|/(config|theme\.css|favicon\.ico|manifest\.json)|/(assets|static)/.+"
    r"|/gradio_api/(queue/data|upload_progress|heartbeat/\w+|file=.+)"
)
_WRITABLE = re.compile(rf"{_JOIN}|{_UPLOAD}|/gradio_api/(cancel|reset)")
"""Paths that the page reads, and paths that it posts to."""

_FORM_ERRORS = (AttributeError, KeyError, TypeError, ValueError)
"""Errors that Gradio raises for forms without a file, without a file name or without a boundary."""

_MAX_REQUEST_BYTES = 2**20
_MAX_UPLOADED_BYTES = 2**28
"""Maximum bytes of a request that is not an upload, and of all uploaded files that Gradio has not yet deleted."""

_HEADERS = {
    "content-security-policy": "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; frame-ancestors 'self'",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""Browsers may load nothing from other sites, and other sites may load nothing from here."""


class _RefusedError(Exception):
    """A refused request, with the HTTP status and the sentence of the answer."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class AccessControl:
    """ASGI middleware that checks each request and passes it on.

    app:    the application behind it
    folder: the only folder whose files a request may name
    token:  the secret that every visitor needs, first in the address and then in a cookie
    local:  answer only requests to this machine's own names, such as localhost
    """

    app: Any
    folder: Path
    token: str
    local: bool

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Refuse a request, or pass it on."""
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
                receive = await self._check_request(scope, headers, receive)
        except _RefusedError as refused:
            answer = PlainTextResponse(f"{refused}\n", refused.status)
        if answer is None and scope["path"] == _UPLOAD:
            await self._pass_upload(scope, receive, send)
        else:
            await (answer or self.app)(scope, receive, send)

    async def _pass_upload(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass on an upload. If Gradio fails on the form, answer with a sentence instead of its error 500."""
        try:
            await self.app(scope, receive, _without_failures(send))
        except _FORM_ERRORS:
            answer = PlainTextResponse("The upload has no file with a name: drop the picture on the page.\n", 400)
            await answer(scope, receive, send)

    def _check_origin(self, headers: Headers) -> None:
        """Refuse requests from pages of other sites, also if their name resolves to this machine."""
        host = headers.get("host", "").lower()
        if self.local and not is_loopback(_host_name(host)):
            raise _RefusedError(403, "The page is for this machine only: open the address that ddm explore printed.")
        origin = headers.get("origin")
        if origin is not None and origin.lower().partition("://")[2] != host:
            raise _RefusedError(403, "Other sites may not send requests here: open the page itself.")
        fetched, mode = headers.get("sec-fetch-site"), headers.get("sec-fetch-mode")
        if fetched in ("cross-site", "same-site") and mode != "navigate":
            raise _RefusedError(403, "Other sites may not send requests here: open the page itself.")

    def _check_token(self, scope: Any, headers: Headers) -> Response | None:
        """None if the cookie holds the token. If the address holds it, a page that sets the cookie and reloads."""
        cookie = f"ddm-explore-{(scope.get('server') or ('', 0))[1]}"
        if self._is_token(cookie_parser(headers.get("cookie", "")).get(cookie, "")):
            return None
        parts = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if not any(name == TOKEN and self._is_token(value) for name, value in parts):
            raise _RefusedError(401, f"A token is needed: open the address with ?{TOKEN}=… that ddm explore printed.")
        return self._welcome(scope, cookie, [part for part in parts if part[0] != TOKEN])

    def _is_token(self, token: str) -> bool:
        return hmac.compare_digest(token.encode(), self.token.encode())

    def _welcome(self, scope: Any, cookie: str, rest: list[tuple[str, str]]) -> Response:
        """A page that sets the cookie and reloads. After a redirect from another site, browsers omit strict cookies."""
        target = escape("?" + urlencode(rest, safe="/"))
        answer = HTMLResponse(
            f"<!doctype html><meta http-equiv='refresh' content='0;url={target}'><a href='{target}'>Continue</a>",
            headers={"cache-control": "no-store"},
        )
        secure = scope.get("scheme") == "https"
        answer.set_cookie(cookie, self.token, httponly=True, samesite="strict", secure=secure)
        return answer

    async def _check_request(self, scope: Any, headers: Headers, receive: Any) -> Any:
        """Check path, size and named files of a request. Returns the function that receives its body."""
        path, reads = scope["path"], scope["method"] in ("GET", "HEAD")
        if not (_READABLE if reads else _WRITABLE).fullmatch(path) or scope["method"] not in ("GET", "HEAD", "POST"):
            raise _RefusedError(404, "There is nothing here.")
        if path.startswith(_FILE):
            self._check_file(path.removeprefix(_FILE))
        if reads:
            return receive
        _check_length(path, headers)
        if path == _UPLOAD:
            await self._check_uploads()
            return receive
        body = await _read_body(receive)
        self._check_body(body)
        return _replay(body, receive)

    async def _check_uploads(self) -> None:
        """Refuse further uploads above the limit. The count runs in a thread, so that other visitors do not wait."""
        if await asyncio.to_thread(folder_bytes, self.folder) > _MAX_UPLOADED_BYTES:
            raise _RefusedError(503, "Visitors have uploaded too many pictures: try again in an hour.")

    def _check_body(self, body: bytes) -> None:
        try:
            for path in _paths(json.loads(body)):
                self._check_file(path)
        except (ValueError, RecursionError):
            raise _RefusedError(400, "The request cannot be read.") from None

    def _check_file(self, path: Any) -> None:
        """Allow only files in the page's own folder: no other files of this machine, and no web addresses."""
        try:
            inside = Path(path).is_absolute() and Path(path).resolve().is_relative_to(self.folder.resolve())
            known = inside and Path(path).is_file()
        except (TypeError, ValueError, OSError, RuntimeError):
            known = False
        if not known:
            raise _RefusedError(403, "There is no such file here: drop the picture on the page.")


def is_loopback(name: str) -> bool:
    """True if a host name always means this machine."""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _host_name(host: str) -> str:
    """The name in a Host header, without port and brackets."""
    return re.sub(r":\d*$", "", host).strip("[]")


def _check_length(path: str, headers: Headers) -> None:
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        raise _RefusedError(411, "The request has no valid Content-Length.")
    limit = upload.MAX_BYTES + _MAX_REQUEST_BYTES if path == _UPLOAD else _MAX_REQUEST_BYTES
    if len(length) > 12 or int(length) > limit:
        raise _RefusedError(413, f"The request is larger than {limit // 2**20} MB: use a smaller file.")


def _paths(value: Any) -> Iterator[Any]:
    """All values in a request that Gradio could use as the path of a file."""
    if isinstance(value, dict):
        if "path" in value:
            yield value["path"]
        for part in value.values():
            yield from _paths(part)
    elif isinstance(value, list):
        for part in value:
            yield from _paths(part)


async def _read_body(receive: Any) -> bytes:
    """Read the body of a request whose length was checked."""
    parts = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise _RefusedError(400, "The request ended too early.")
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _replay(body: bytes, receive: Any) -> Any:
    """A receive function that returns a body that was already read, then whatever follows."""
    given = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def received() -> Any:
        return next(given, None) or await receive()

    return received


def _without_failures(send: Any) -> Any:
    """A send function that drops answers with status 500; the caller sends another one."""
    failed = False

    async def sent(message: Any) -> None:
        nonlocal failed
        failed = failed or message.get("status") == 500
        if not failed:
            await send(message)

    return sent


def _with_headers(send: Any) -> Any:
    """A send function that adds ``_HEADERS`` to every answer."""

    async def sent(message: Any) -> None:
        if message["type"] == "http.response.start":
            added = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
            message["headers"] = [*message.get("headers", []), *added]
        await send(message)

    return sent
