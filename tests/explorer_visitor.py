"""A visitor of the explorer's page without a browser: it sends the requests that a browser would send."""

import json
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx


@contextmanager
def logged_in(address: str) -> Iterator[httpx.Client]:
    """A client that has opened the printed address and holds its cookie."""
    site = address.partition("?")[0]
    with httpx.Client(base_url=site, trust_env=False, timeout=120) as client:
        client.get(address).raise_for_status()
        yield client


class Visitor:
    """One visit, with its own state on the server."""

    def __init__(self, client: httpx.Client) -> None:
        self.client, self.hash = client, secrets.token_hex(8)
        config = client.get("/config").raise_for_status().json()
        self.names = {part["id"]: part["props"].get("elem_id") for part in config["components"]}
        self.events = {self._event(event): event for event in reversed(config["dependencies"])}
        self.ordering = next(event for event in config["dependencies"] if self._outputs(event) == ["ddm-samples"])

    def open(self, query: str = "") -> dict[str, Any]:
        """Load the page at an address."""
        return self.send(self.events[None, "load"], query)

    def use(self, name: str, event: str, *values: Any, data: Any = None) -> dict[str, Any]:
        """Use a control and return the new contents of the page, by element name."""
        return self.send(self.events[name, event], *values, data=data)

    def order(self) -> dict[str, Any]:
        """Ask for the ordered training samples, as the page does after the other answers."""
        return self.send(self.ordering)

    def drop(self, content: bytes, name: str = "picture.png") -> dict[str, Any]:
        """Drop a file on the page."""
        sent = self.client.post("/gradio_api/upload", files={"files": (name, content)}).raise_for_status()
        return self.use("ddm-upload", "upload", file_at(sent.json()[0]))

    def join(self, event: dict[str, Any], *values: Any, data: Any = None) -> httpx.Response:
        """Put a request into the queue."""
        states = [None] * (len(event["inputs"]) - len(values))
        body = {"data": [*states, *values], "fn_index": event["id"], "session_hash": self.hash, "event_data": data}
        return self.client.post("/gradio_api/queue/join", json=body)

    def send(self, event: dict[str, Any], *values: Any, data: Any = None) -> dict[str, Any]:
        """Send a request and wait for the answer."""
        self.join(event, *values, data=data).raise_for_status()
        return self.answer(event)

    def answer(self, event: dict[str, Any]) -> dict[str, Any]:
        """Wait for the answer to the one request in the queue."""
        with self.client.stream("GET", "/gradio_api/queue/data", params={"session_hash": self.hash}) as stream:
            for line in stream.iter_lines():
                message = json.loads(line.removeprefix("data:")) if line else {}
                if message.get("msg") == "process_completed":
                    assert message["success"], message
                    return self._parts(event, message["output"]["data"])
        raise AssertionError("the stream ended without an answer")

    def _event(self, event: dict[str, Any]) -> tuple[str | None, str]:
        part, kind = event["targets"][0]
        return self.names.get(part), kind

    def _outputs(self, event: dict[str, Any]) -> list[str | None]:
        return [self.names.get(part) for part in event["outputs"]]

    def _parts(self, event: dict[str, Any], values: list[Any]) -> dict[str, Any]:
        contents = {}
        for name, value in zip(self._outputs(event), values, strict=True):
            if not isinstance(value, dict) or "__type__" not in value:
                contents[name] = value
            elif "value" in value:
                contents[name] = value["value"]
        return contents


def file_at(path: str) -> dict[str, Any]:
    """A reference to an uploaded file, as requests carry it."""
    return {"path": path, "orig_name": "picture.png", "meta": {"_type": "gradio.FileData"}}


def probabilities(parts: dict[str, Any], when: str) -> list[float]:
    """The probability of each class on the page, ``when`` being before or after the removal."""
    cells = re.findall(rf"<td[^>]*data-when=['\"]?{when}['\"]?[^>]*>", parts["ddm-bars"])
    return [float(re.search(r"data-value=['\"]?([-+.\de]+)", cell)[1]) for cell in cells]
