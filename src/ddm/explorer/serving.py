"""Serving the page on this machine, to this machine."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from ddm import progress
from ddm.errors import InputError
from ddm.explorer import upload
from ddm.explorer.opened import Opened, warm, warm_ordering

HOST = "127.0.0.1"

_POLICY = "default-src 'self' data: blob: 'unsafe-inline' 'unsafe-eval'; frame-ancestors 'self'"
"""What a browser may load: nothing from elsewhere, whatever Gradio's page asks for."""


@contextmanager
def served(opened: Opened, port: int | None, *, browser: bool = False) -> Iterator[str]:
    """The page's address while it is served."""
    with tempfile.TemporaryDirectory(prefix="ddm-explore-") as folder, _local_only(Path(folder)), progress.silent():
        _in_background(warm, opened)  # while Gradio is being imported
        blocks = _blocks(opened)
        try:
            address = _launched(blocks, port, browser)
            _in_background(warm_ordering, opened)
            yield address
        finally:
            blocks.close(verbose=False)


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
    """No analytics, no hub, no proxy for this machine's own address; files of a session in ``folder``."""
    before = dict(os.environ)
    around = ",".join(filter(None, [HOST, before.get("NO_PROXY")]))
    os.environ |= {
        "GRADIO_ANALYTICS_ENABLED": "False",
        "GRADIO_TEMP_DIR": str(folder),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "NO_PROXY": around,
        "no_proxy": around,
    }
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _blocks(opened: Opened) -> Any:
    try:
        from ddm.explorer.page import Page
    except ModuleNotFoundError as error:
        if error.name != "gradio":
            raise
        raise InputError("ddm explore needs Gradio: pip install 'distilled-datamodel[explore]'.") from None
    return Page(opened).blocks


def _launched(blocks: Any, port: int | None, browser: bool) -> str:
    """Start the server in the background; its address."""
    import gradio as gr

    theme = gr.themes.Default(font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"])
    try:
        _, address, _ = blocks.launch(
            server_name=HOST,
            server_port=port,
            share=False,
            inbrowser=browser,
            prevent_thread_lock=True,
            quiet=True,
            footer_links=[],
            run_history=False,
            ssr_mode=False,
            pwa=False,
            mcp_server=False,
            enable_monitoring=False,
            max_file_size=upload.MOST_BYTES,
            theme=theme,
            css_paths=Path(__file__).with_name("page.css"),
            app_kwargs={"middleware": _middleware()},
        )
    except OSError:
        raise InputError(f"port {port} is taken: choose another --port, or none.") from None
    return str(address)


def _middleware() -> list[Any]:
    """Refuse requests for other names than this machine's, and tell browsers to load nothing from elsewhere."""
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    return [Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"]), Middleware(_Policy)]


class _Policy:
    """Adds the content security policy to every answer."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def answer(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), (b"content-security-policy", _POLICY.encode())]
            await send(message)

        await self.app(scope, receive, answer if scope["type"] == "http" else send)
