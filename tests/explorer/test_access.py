"""Access control of the explorer, tested with real requests to a real server."""

import gc
import io
import os
import re
import socket
from pathlib import Path
from urllib.parse import urlparse

import httpx
import pytest
from explorer_visitor import Visitor, file_at, logged_in, probabilities
from PIL import Image

from ddm.explorer import access, page, server, upload
from ddm.explorer.explored_run import ExploredRun

TOKEN = "a-token-of-letters-and-digits-0123456789"


@pytest.fixture(scope="module")
def run(tmp_path_factory, datamodel, digits) -> ExploredRun:
    run = tmp_path_factory.mktemp("run")
    (run / "manifest.json").write_text("{}", encoding="utf-8")
    return ExploredRun(run, datamodel, digits)


@pytest.fixture(scope="module")
def site(run):
    """The page as it is by default."""
    with server.serve(run, None) as address:
        yield address


@pytest.fixture
def client(site):
    with logged_in(site) as client:
        yield client


@pytest.fixture
def uninvited(site):
    """A client that knows where the page is, but not its token: another user of this machine."""
    with httpx.Client(base_url=site.partition("?")[0], trust_env=False, timeout=60) as client:
        yield client


@pytest.fixture
def stranger(run):
    """A client that does not have the token."""
    with (
        server.serve(run, None, token=TOKEN) as guarded,
        httpx.Client(base_url=guarded, trust_env=False, timeout=60) as client,
    ):
        yield client


def picture(*size, kind="PNG", **options) -> bytes:
    """The file of a grey picture."""
    file = io.BytesIO()
    Image.new("L", size, 99).save(file, kind, **options)
    return file.getvalue()


def files_of(client):
    """The folder that holds the files of all visits."""
    sent = client.post("/gradio_api/upload", files={"files": ("a.png", picture(8, 8))}).json()[0]
    return Path(sent).parents[1]


# Other sites


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "elsewhere.example"},
        {"host": "127.0.0.1.elsewhere.example:7860"},
        {"host": "localhost.elsewhere.example"},
        {"host": "192.168.0.1"},
        {"origin": "http://elsewhere.example"},
        {"origin": "null"},
        {"origin": "http://localhost:1"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
    ],
    ids=str,
)
def test_a_page_of_another_site_cannot_ask(client, headers):
    for path in ("/", "/config", "/gradio_api/heartbeat/x", "/nowhere"):
        found = client.get(path, headers=headers)
        assert found.status_code == 403
        assert found.text.endswith(".\n")
    assert client.post("/gradio_api/queue/join", json={}, headers=headers).status_code == 403
    assert client.options("/", headers={"access-control-request-method": "POST"} | headers).status_code == 403


def test_the_page_itself_can_ask_and_a_link_to_it_can_be_followed(client, site):
    own = {"origin": site.partition("/?")[0], "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}
    assert client.get("/config", headers=own).status_code == 200
    linked = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    found = client.get("/", headers=linked)
    assert found.status_code == 200
    assert "default-src 'self'" in found.headers["content-security-policy"]
    assert found.headers["cross-origin-resource-policy"] == "same-origin"
    assert client.get("/", headers={"host": site.split("/")[2].replace("127.0.0.1", "localhost")}).status_code == 200


@pytest.mark.parametrize(
    ("name", "local"),
    [("127.0.0.1", True), ("127.0.0.2", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("", False)],
)
def test_names_of_this_machine_are_known(name, local):
    assert access.is_loopback(name) == local


# The token


def every_route():
    """Each path of Gradio with a method it answers to."""
    import gradio as gr
    from gradio.routes import App

    routes = []
    for route in App.create_app(gr.Blocks()).routes:
        routes += route.original_router.routes if hasattr(route, "original_router") else [route]
    paths = {(method, route.path) for route in routes for method in route.methods}
    return sorted((method, re.sub(r"{[^}]+}", "x", path)) for method, path in paths)


def test_no_route_is_answered_without_the_token(stranger):
    routes = every_route()
    assert len(routes) > 60
    assert ("POST", "/gradio_api/upload") in routes
    assert ("GET", "/gradio_api/queue/data") in routes
    for wrong in ("", f"?{access.TOKEN}={TOKEN[:-1]}&session_hash={TOKEN}"):
        for method, path in [*routes, ("OPTIONS", "/"), ("GET", "/nowhere"), ("PUT", "/")]:
            found = stranger.request(method, path + wrong, headers={"cookie": f"ddm-explore={TOKEN}"})
            assert found.status_code == 401, (method, path)
            assert "set-cookie" not in found.headers
            assert TOKEN not in found.text


def test_a_web_socket_is_not_opened(site):
    name, port = site.split("/")[2].split(":")
    with socket.create_connection((name, int(port)), timeout=20) as connection:
        lines = ["GET / HTTP/1.1", f"Host: {name}:{port}", "Upgrade: websocket", "Connection: Upgrade"]
        lines += ["Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==", "", ""]
        connection.sendall("\r\n".join(lines).encode())
        assert not connection.recv(100).startswith(b"HTTP/1.1 101")


def test_the_token_in_the_address_becomes_a_cookie(stranger, run):
    welcome = stranger.get(f"/?index=3&{access.TOKEN}={TOKEN}&remove=<b>")
    assert welcome.status_code == 200
    cookie = welcome.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert welcome.headers["cache-control"] == "no-store"
    assert TOKEN not in welcome.text
    assert "?index=3&amp;remove=%3Cb%3E" in welcome.text
    assert stranger.get("/config").status_code == 200
    parts = Visitor(stranger).open("?index=3")
    truth = run.datamodel.target.outputs(run.data.test[3][0][None]).double().softmax(1)[0].numpy()
    assert probabilities(parts, "before") == pytest.approx(truth, abs=1e-5)


def test_the_cookie_of_a_proxy_with_tls_is_secure(stranger):
    welcome = stranger.get(f"/?{access.TOKEN}={TOKEN}", headers={"host": "ddm.example", "x-forwarded-proto": "https"})
    assert "secure" in welcome.headers["set-cookie"].lower()


def test_with_a_token_another_site_still_cannot_ask(stranger):
    cookie = {"cookie": f"ddm-explore-{stranger.base_url.port}={TOKEN}"}
    assert stranger.get("/config", headers=cookie).status_code == 200
    assert stranger.get("/config", headers=cookie | {"origin": "http://elsewhere.example"}).status_code == 403


def test_other_users_of_this_machine_need_the_token_too(uninvited, site):
    token = re.search(r"/\?token=([\w-]{40,})$", site)[1]
    for path in ("/", "/config", f"/?{access.TOKEN}={token[:-1]}", "/gradio_api/file=/etc/passwd"):
        assert uninvited.get(path).status_code == 401
    assert uninvited.post("/gradio_api/upload", files={"files": ("a.png", picture(8, 8))}).status_code == 401
    assert uninvited.get("/", params={access.TOKEN: token}).status_code == 200
    assert uninvited.get("/config").status_code == 200


def test_a_token_of_ones_own_is_not_printed(stranger):
    assert not stranger.base_url.query


def test_the_browser_gets_the_token_by_a_private_file(run, monkeypatch):
    opened_pages = []
    monkeypatch.setattr(server.webbrowser, "open", opened_pages.append)
    with server.serve(run, None, browser=True) as address:
        token = address.partition("=")[2]
        assert token not in opened_pages[0]
        file = Path(urlparse(opened_pages[0]).path)
        assert token in file.read_text(encoding="utf-8")
        assert file.parent.stat().st_mode & 0o077 == 0


def test_for_other_machines_a_token_is_made(run):
    with server.serve(run, None, host="0.0.0.0") as address:
        port, token = re.search(r":(\d+)/\?token=([\w-]{40,})$", address).groups()
        here = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=here, trust_env=False, timeout=60) as client:
            assert client.get("/").status_code == 401
            assert client.get("/", params={"token": token}).status_code == 200
            assert client.get("/config").status_code == 200


@pytest.mark.parametrize("token", ["", "secret", "ü" * 20, "line\nbreak" * 5])
def test_tokens_that_are_easy_to_guess_are_refused(run, refused, token):
    with refused("token", "guess"), server.serve(run, None, host="0.0.0.0", token=token):
        pass


def test_a_host_that_is_not_this_machine_is_refused(run, refused):
    with refused("192.0.2.1", "--host"), server.serve(run, None, host="192.0.2.1"):
        pass


# Files


@pytest.fixture
def hidden(client, run):
    """Paths and addresses that nobody may reach, by way of a link, too."""
    folder, link = files_of(client), files_of(client) / "link"
    if not link.is_symlink():
        link.symlink_to(run.folder)
    paths = ["/etc/passwd", f"{folder}/../../etc/passwd", f"{folder}/link/manifest.json", "manifest.json", "~/.bashrc"]
    paths += [str(run.folder / "manifest.json"), "file:///etc/passwd", str(folder), f"{folder}/none", "\0", ""]
    paths += [f"{Path.cwd()}/.gradio/cached_examples/x", server.__file__]
    return paths


def test_only_files_of_the_page_are_given_out(client, hidden):
    for path in hidden:
        for written in (path, path.replace("/", "%2F").replace(".", "%2E"), path.replace("..", "%252e%252e")):
            written = written.replace("\0", "%00")
            assert client.get(f"/gradio_api/file={written}").status_code in (403, 404)
            assert client.get(f"/gradio_api/file/{written}").status_code == 404
    shown = Visitor(client).open("?show=all")["ddm-gallery"][0]["image"]
    assert client.get(f"/gradio_api/file={shown['path']}").headers["content-type"] == "image/png"


def test_a_request_cannot_name_a_file_or_an_address(client, hidden):
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(0.5)
        port = other.getsockname()[1]
        visitor = Visitor(client)
        visitor.open()
        for path in [*hidden, f"http://127.0.0.1:{port}/", f"http://localhost:{port}/a.png", "http://198.51.100.1/", 3]:
            for name, event, value in (
                ("ddm-upload", "upload", file_at(path)),
                ("ddm-objective", "input", file_at(path)),
                ("ddm-ticks", "input", [[{"deep": file_at(path)}]]),
            ):
                assert visitor.join(visitor.events[name, event], value).status_code == 403
            chosen = {"index": 0, "value": {"image": file_at(path)}}
            assert visitor.join(visitor.events["ddm-gallery", "select"], data=chosen).status_code == 403
        for kind in ("file=", "file/", "proxy="):
            assert client.get(f"/gradio_api/{kind}http://127.0.0.1:{port}/").status_code in (403, 404)
        with pytest.raises(TimeoutError):
            other.accept()


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000, b'{"data": NaN', b'"text"', b"[]", b"null"])
def test_a_request_that_cannot_be_read_is_refused(client, body):
    found = client.post("/gradio_api/queue/join", content=body, headers={"content-type": "application/json"})
    assert found.status_code in (400, 422)


@pytest.mark.parametrize(
    "path",
    [
        "run/predict", "api/predict", "call/x", "call/v2/x", "component_server", "process_recording", "stream/x",
        "vibe-edit", "vibe-code", "login", "queue/join/../../run/x",
    ],
)  # fmt: skip
def test_what_the_page_does_not_need_is_not_there(client, path):
    assert client.post(f"/gradio_api/{path}", json={"data": []}).status_code == 404


def test_pages_about_the_server_are_not_there(client):
    for path in (
        "/docs",
        "/openapi.json",
        "/monitoring",
        "/gradio_api/info",
        "/gradio_api/runs",
        "/gradio_api/deep_link",
    ):
        assert client.get(path).status_code == 404


# Pictures of visitors


def test_a_file_is_stored_under_a_name_of_the_servers(client):
    folder = files_of(client)
    for name in ("../../../evil.png", "/etc/evil.png", "..\\evil.png", "a" * 300 + ".png", "\n.png"):
        sent = client.post("/gradio_api/upload", files={"files": (name, picture(8, 8))})
        if sent.status_code == 200:
            assert Path(sent.json()[0]).resolve().is_relative_to(folder)
    assert not list(folder.parent.glob("evil.png"))


@pytest.mark.parametrize("query", ["", "?upload_id=x"])
@pytest.mark.parametrize(
    ("kind", "disposition"),
    [
        ("multipart/form-data; boundary=x", 'name="files"'),
        ("multipart/form-data; boundary=x", 'name="other"'),
        ("multipart/form-data", 'name="files"; filename="a.png"'),
        ("text/plain", 'name="files"; filename="a.png"'),
    ],
)
def test_an_upload_without_a_file_name_gets_a_sentence(client, query, kind, disposition):
    body = f"--x\r\nContent-Disposition: form-data; {disposition}\r\n\r\nwords\r\n--x--\r\n".encode()
    found = client.post(f"/gradio_api/upload{query}", content=body, headers={"content-type": kind})
    assert found.status_code == (200 if "other" in disposition and not query else 400)
    assert client.get("/config").status_code == 200


def test_files_that_are_too_large_are_not_read(client):
    large = b"0" * (upload.MAX_BYTES + 1)
    assert client.post("/gradio_api/upload", files={"files": ("a.png", large)}).status_code == 413
    host = f"{client.base_url.host}:{client.base_url.port}"
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=20) as connection:
        lines = ["POST /gradio_api/upload HTTP/1.1", f"Host: {host}", f"Content-Length: {10**11}"]
        lines += [f"Cookie: {name}={value}" for name, value in client.cookies.items()]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 413")
    assert client.post("/gradio_api/upload", content=iter([b"0"] * 3)).status_code == 411
    long = {"data": ["0" * 2_000_000]}
    assert client.post("/gradio_api/queue/join", json=long).status_code == 413


def test_files_of_visitors_do_not_fill_the_disk(client, monkeypatch):
    monkeypatch.setattr(access, "_MAX_UPLOADED_BYTES", 10)
    files_of_others = {"files": ("a.png", picture(8, 8))}
    found = client.post("/gradio_api/upload", files=files_of_others)
    if found.status_code == 200:  # the first one
        found = client.post("/gradio_api/upload", files=files_of_others)
    assert found.status_code == 503
    assert "try again" in found.text


def test_what_is_removed_meanwhile_does_not_let_more_in(client, monkeypatch):
    (files_of(client) / "removed").symlink_to("nowhere")
    monkeypatch.setattr(access, "_MAX_UPLOADED_BYTES", 10)
    assert client.post("/gradio_api/upload", files={"files": ("a.png", picture(8, 8))}).status_code == 503


def test_a_full_run_gets_a_sentence_on_the_page(client, run, monkeypatch):
    monkeypatch.setattr(run.quota, "limit", 0)
    visitor = Visitor(client)
    visitor.open(f"?index=3&remove={run.datamodel.partition.names[2]}")
    assert "which is the limit" in visitor.use("ddm-save", "click")["ddm-saved"]
    assert "which is the limit" in visitor.use("ddm-compare", "click")["ddm-comparison"]


def test_what_is_no_picture_gets_a_sentence_on_the_page(client):
    visitor = Visitor(client)
    visitor.open("?index=3")
    bomb = picture(5000, 5000)
    assert len(bomb) < 100_000
    for content, word in [
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a picture"),
        (b"#!/bin/sh\n", "not a picture"),
        (picture(500, 500, kind="BMP")[:1000], "damaged"),
        (picture(8, 8, kind="TIFF"), "not a picture"),
        (bomb, "million pixels"),
        (b"\x89PNG\r\n\x1a\n" + os.urandom(500), "picture"),
    ]:
        parts = visitor.drop(content)
        assert word in parts["ddm-notice"]
        assert "ddm-image" not in parts
    assert "your picture" in visitor.drop(picture(8, 8))["ddm-image"]


# Visits


def test_visitors_have_a_state_each(client, run):
    one, two = Visitor(client), Visitor(client)
    one.open("?index=3")
    two.open("?index=4")
    group = run.datamodel.partition.names[0]
    assert f"Without {group}" in one.use("ddm-another", "input", group)["ddm-bars"]
    parts = two.use("ddm-objective", "input", "loss")
    assert "index=4" in parts["ddm-query"]
    assert "remove" not in parts["ddm-query"]
    assert "index=3" in one.use("ddm-clear", "click")["ddm-query"]


@pytest.mark.parametrize(
    ("name", "event", "values"),
    [
        ("ddm-clear", "click", []),
        ("ddm-index", "submit", [3]),
        ("ddm-save", "click", []),
        ("ddm-compare", "click", []),
        ("ddm-gallery", "select", []),
    ],
)
def test_a_forgotten_visit_gets_a_sentence(client, name, event, values):
    parts = Visitor(client).use(name, event, *values, data={"index": 0, "value": None})
    assert "reload the page" in str(parts)
    assert Visitor(client).order() == {"ddm-samples": ""}


def test_a_picture_that_is_not_in_the_gallery_gets_a_sentence(client):
    visitor = Visitor(client)
    visitor.open("?index=3")
    for index in (-1, 1000, "1", None, [1, 2]):
        parts = visitor.use("ddm-gallery", "select", data={"index": index, "value": None})
        assert "choose one that is shown" in parts["ddm-notice"]


def test_only_some_visits_and_questions_are_kept(run):
    blocks = page.Page(run).blocks
    assert blocks.state_session_capacity < 1000
    assert blocks._queue.max_size < 1000


def test_a_long_visit_takes_no_more_memory(client):
    import gradio as gr

    def controls():
        gc.collect()
        return sum(isinstance(each, gr.Number | gr.Dropdown | gr.CheckboxGroup) for each in gc.get_objects())

    visitor = Visitor(client)
    visitor.open("?index=0")
    kept = []
    for _ in range(3):
        for number in (1, 2, 3):
            visitor.use("ddm-index", "submit", number)
        visitor.use("ddm-objective", "input", "loss")
        visitor.use("ddm-objective", "input", "prediction")
        kept.append(controls())
    assert kept[1] == kept[2]


def test_one_retraining_at_a_time(client, run):
    visitor = Visitor(client)
    visitor.open(f"?index=3&remove={run.datamodel.partition.names[1]}")
    with run.retraining_lock:
        assert "try again" in visitor.use("ddm-compare", "click")["ddm-comparison"]
    assert not run.retraining_lock.locked()


def test_a_busy_page_says_so_and_answers_those_who_wait(run, monkeypatch):
    monkeypatch.setattr(page, "_MAX_QUEUE", 2)
    with server.serve(run, None) as site, logged_in(site) as client:
        visitors = [Visitor(client) for _ in range(6)]
        with run.lock:
            question = [visitor.join(visitor.events[None, "load"], "?index=3") for visitor in visitors]
        waiting = [visitor for visitor, answer in zip(visitors, question, strict=True) if answer.status_code == 200]
        assert {answer.status_code for answer in question} == {200, 503}
        for visitor in waiting:
            assert probabilities(visitor.answer(visitor.events[None, "load"]), "before")
