"""Serving the page: to this machine, or, with a token, to others."""

from __future__ import annotations

import errno
import os
import secrets
import signal
import socket
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from ddm import progress
from ddm.errors import InputError
from ddm.explorer import upload
from ddm.explorer.opened import Opened, warm, warm_ordering

HOST = "127.0.0.1"

_PORTS = range(7860, 7960)

_LEAST_TOKEN = 16
"""Characters that a token has at least."""

_MOST_CONNECTIONS = 500
"""At once; a visitor has two or three. Who comes later is told that the page is busy."""

_PATIENCE = 60.0
"""Seconds that a busy machine may take to start the server."""


@contextmanager
def served(
    opened: Opened, port: int | None, *, host: str = HOST, token: str | None = None, browser: bool = False
) -> Iterator[str]:
    """The page's address while it is served.

    A ``token`` is asked of every visitor; where ``host`` is not this machine's own and none is given, one is made. The
    address holds a token that was made.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ddm-explore-") as folder,
        _local_only(Path(folder)),
        progress.silent(),
        _listening(host, port) as listener,
    ):
        made = None if token or _is_loopback(listener) else secrets.token_urlsafe(32)
        _in_background(warm, opened)  # while Gradio is being imported
        blocks = _blocks(opened)
        with _answering(blocks, listener, Path(folder), _checked(token) or made):
            _in_background(warm_ordering, opened)
            address = _address(listener, made)
            if browser:
                webbrowser.open(address)
            yield address


def wait() -> None:
    """Until the process is asked to end."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()


def leave() -> NoReturn:
    """End the process at once: a thread in the midst of torch's work would make an ordinary end an abort."""
    sys.stdout.flush()
    os._exit(0)


def _in_background(work: Callable[[Opened], None], opened: Opened) -> None:
    threading.Thread(target=work, args=(opened,), daemon=True).start()


@contextmanager
def _local_only(folder: Path) -> Iterator[None]:
    """No analytics and no hub; files of a session in ``folder``."""
    before = dict(os.environ)
    os.environ |= {
        "GRADIO_ANALYTICS_ENABLED": "False",
        "GRADIO_ANALYTICS_MAX_EVENTS": "1",  # statistics of all answers that nobody sees, and that are else made
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


def _checked(token: str | None) -> str | None:
    if token is not None and (len(token) < _LEAST_TOKEN or not (token.isascii() and token.isprintable())):
        raise InputError(f"the token is too easy to guess: give {_LEAST_TOKEN} letters and digits or more, or none.")
    return token


@contextmanager
def _listening(host: str, port: int | None) -> Iterator[socket.socket]:
    """A socket at the port, or at the first free one."""
    for number in _PORTS if port is None else [port]:
        try:
            family, _, _, _, where = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
            listener = socket.create_server(where[:2], family=family)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise InputError(f"{host} is no address of this machine: give another --host, or none.") from None
        else:
            with listener:
                yield listener
            return
    raise InputError(f"port {port or f'{_PORTS[0]} to {_PORTS[-1]}'} is taken: choose another --port, or none.")


def _is_loopback(listener: socket.socket) -> bool:
    from ddm.explorer.gate import loopback

    return loopback(listener.getsockname()[0])


def _address(listener: socket.socket, token: str | None) -> str:
    name, port = listener.getsockname()[:2]
    if name in ("0.0.0.0", "::"):
        name = socket.gethostname()
    return f"http://{f'[{name}]' if ':' in name else name}:{port}/" + (f"?token={token}" if token else "")


def _blocks(opened: Opened) -> Any:
    try:
        from ddm.explorer.page import Page
    except ModuleNotFoundError as error:
        if error.name != "gradio":
            raise
        raise InputError("ddm explore needs Gradio: pip install 'distilled-datamodel[explore]'.") from None
    return Page(opened).blocks


@contextmanager
def _answering(blocks: Any, listener: socket.socket, folder: Path, token: str | None) -> Iterator[None]:
    """The page is answered in the background. Not by Gradio's own ``launch``, whose routes no gate can stand before."""
    import uvicorn

    from ddm.explorer.gate import Gate

    gate = Gate(_application(blocks), folder, token)
    server = uvicorn.Server(
        uvicorn.Config(gate, log_level="warning", limit_concurrency=_MOST_CONNECTIONS, timeout_graceful_shutdown=1)
    )
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        _until_started(server, thread)
        yield
    finally:
        blocks.close(verbose=False)
        server.should_exit = True
        thread.join(5)


def _until_started(server: Any, thread: threading.Thread) -> None:
    end = time.monotonic() + _PATIENCE
    while not server.started:
        if not thread.is_alive() or time.monotonic() > end:
            raise InputError("the page could not be served: look at the messages above.")
        time.sleep(0.01)


def _application(blocks: Any) -> Any:
    """Gradio's routes of the page."""
    import gradio as gr
    from fastapi import FastAPI

    theme = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    blocks.has_launched = True  # else Gradio lets a request name any file: the gate does not, but two checks are better
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
        max_file_size=upload.MOST_BYTES,
        theme=theme,
        css_paths=Path(__file__).with_name("page.css"),
    )
    blocks.app = application.routes[-1].app  # so that closing the blocks ends the streams to visitors
    return application
