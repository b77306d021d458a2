"""The web server of the page, for visitors who have the token."""

from __future__ import annotations

import errno
import importlib.util
import os
import secrets
import shlex
import signal
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any, NoReturn

from ddm.compute import progress
from ddm.compute.folders import temporary_folder
from ddm.errors import InputError
from ddm.explorer import upload
from ddm.explorer.explored_run import ExploredRun, warm_up, warm_up_shares

HOST = "127.0.0.1"

_PORTS = range(7860, 7960)

_MIN_TOKEN = 16
"""Minimum length of a token, in characters."""

_FOLDER = "ddm-explore-"
"""Prefix of the temporary folders that hold pictures for visitors."""

_MAX_CONNECTIONS = 500
"""Maximum number of open connections; a visitor has two or three. Further visitors are told that the page is busy."""

_START_SECONDS = 60.0
"""Timeout for the start of the server."""


@contextmanager
def serve(
    run: ExploredRun, port: int | None, *, host: str = HOST, token: str | None = None, browser: bool = False
) -> Iterator[str]:
    """Serve the page until the block ends, and yield its address.

    Every visitor needs the token, even on this machine: otherwise its other users could read the training images.
    Without a ``token`` a random one is created, and the address contains it. A given token is not printed.
    """
    check_installed()
    with (
        temporary_folder(_FOLDER) as folder,
        _local_only(folder),
        progress.silent(),
        _listen(host, port) as listener,
    ):
        random = token is None
        secret = secrets.token_urlsafe(32) if token is None else _check_token(token)
        _in_background(warm_up, run)  # while Gradio is being imported
        with _answer_requests(_blocks(run), listener, folder, secret, local=random):
            _in_background(warm_up_shares, run)
            address = _address(listener, secret if random else None)
            if browser:
                _open_browser(address, folder)
            yield address


def check_installed() -> None:
    """Raise ``InputError`` if Gradio is missing, with the command that installs it."""
    if importlib.util.find_spec("gradio") is None:
        raise InputError(f"ddm explore needs Gradio: install it with {_install_command()}.")


def _install_command() -> str:
    """The command that installs the ``explore`` extra, from this checkout or from the package index."""
    checkout = Path(__file__).parents[3]
    if not (checkout / "constraints.txt").is_file():
        return "pip install 'distilled-datamodel[explore]'"
    python, constraints = shlex.quote(sys.executable), shlex.quote(str(checkout / "constraints.txt"))
    return f"{python} -m pip install -c {constraints} -e '{checkout}[explore]'"


def _open_browser(address: str, folder: Path) -> None:
    """Open the page through a file that only this user can read: other users can see a browser's arguments."""
    page = folder / "open.html"
    page.write_text(f"<!doctype html><meta http-equiv='refresh' content='0;url={escape(address)}'>", encoding="utf-8")
    webbrowser.open(page.as_uri())


def wait() -> None:
    """Wait until the process is interrupted or terminated."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()


def leave() -> NoReturn:
    """Exit at once: a normal exit aborts with an error while another thread is inside torch."""
    sys.stdout.flush()
    os._exit(0)


def _in_background(work: Callable[[ExploredRun], None], run: ExploredRun) -> None:
    threading.Thread(target=work, args=(run,), daemon=True).start()


@contextmanager
def _local_only(folder: Path) -> Iterator[None]:
    """Turn off Gradio's analytics and downloads, and store its files in ``folder``."""
    before = dict(os.environ)
    os.environ |= {
        "GRADIO_ANALYTICS_ENABLED": "False",
        "GRADIO_ANALYTICS_MAX_EVENTS": "1",  # else Gradio computes statistics of all answers
        "GRADIO_ANALYTICS_CACHE_FREQUENCY": str(2**62),  # again after each answer
        "GRADIO_TEMP_DIR": str(folder),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
    }
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _check_token(token: str) -> str:
    if len(token) < _MIN_TOKEN or not (token.isascii() and token.isprintable()):
        raise InputError(f"the token is too easy to guess: use at least {_MIN_TOKEN} letters and digits, or none.")
    return token


@contextmanager
def _listen(host: str, port: int | None) -> Iterator[socket.socket]:
    """A socket on the port, or on the first free one."""
    for number in _PORTS if port is None else [port]:
        try:
            family, _, _, _, where = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
            listener = socket.create_server(where[:2], family=family)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise InputError(f"{host} is not an address of this machine: use another --host, or none.") from None
        else:
            with listener:
                yield listener
            return
    raise InputError(f"port {port or f'{_PORTS[0]} to {_PORTS[-1]}'} is in use: choose another --port, or none.")


def _address(listener: socket.socket, token: str | None) -> str:
    name, port = listener.getsockname()[:2]
    if name in ("0.0.0.0", "::"):
        name = socket.gethostname()
    return f"http://{f'[{name}]' if ':' in name else name}:{port}/" + (f"?token={token}" if token else "")


def _blocks(run: ExploredRun) -> Any:
    from ddm.explorer.page import Page

    return Page(run).blocks


@contextmanager
def _answer_requests(blocks: Any, listener: socket.socket, folder: Path, token: str, local: bool) -> Iterator[None]:
    """Answer requests in a background thread. Gradio's ``launch`` cannot check requests before its own routes do.

    local: on a loopback address, answer only requests to this machine's own names
    """
    import uvicorn

    from ddm.explorer.access import AccessControl, is_loopback

    checked = AccessControl(_application(blocks), folder, token, local and is_loopback(listener.getsockname()[0]))
    server = uvicorn.Server(
        uvicorn.Config(checked, log_level="warning", limit_concurrency=_MAX_CONNECTIONS, timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        _wait_until_started(server, thread)
        yield
    finally:
        blocks.close(verbose=False)
        server.should_exit = True
        thread.join(5)


def _wait_until_started(server: Any, thread: threading.Thread) -> None:
    end = time.monotonic() + _START_SECONDS
    while not server.started:
        if not thread.is_alive() or time.monotonic() > end:
            raise InputError("the page could not be served: see the messages above.")
        time.sleep(0.01)


def _application(blocks: Any) -> Any:
    """The page as an ASGI application."""
    import gradio as gr
    from fastapi import FastAPI

    theme = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    blocks.has_launched = True  # else Gradio serves any file; AccessControl refuses that too
    application = gr.mount_gradio_app(
        FastAPI(docs_url=None, redoc_url=None, openapi_url=None),
        blocks,
        "/",
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        enable_monitoring=False,
        show_error=False,
        max_file_size=upload.MAX_BYTES,
        theme=theme,
        css_paths=Path(__file__).with_name("page.css"),
    )
    blocks.app = application.routes[-1].app  # so that closing the blocks ends the streams to visitors
    return application
