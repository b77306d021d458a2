"""Hooks for mkdocs: they list the options of commands, turn notebooks into pages, and link files outside of docs/."""

from __future__ import annotations

import base64
import html
import posixpath
import re
from pathlib import Path
from typing import Any

import nbformat
import typer.main
from mkdocs.structure.files import File

from ddm.cli.main import app

COMMANDS = "<!-- commands -->"
_LINK = re.compile(r"\[([^\]]+)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """A page for each notebook."""
    for file in list(files):
        if file.src_uri.endswith(".ipynb"):
            page = f"{file.src_uri[:-6]}.md"
            files.append(File.generated(config, page, content=notebook_page(Path(file.abs_src_path))))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """A page with the options of the commands filled in, and files outside of docs/ named instead of linked to."""
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, "\n".join(command_section(name) for name in commands()))
    return named_outside(markdown, page.file.src_uri)


def commands() -> dict[str, Any]:
    """The commands by name, as typer made them."""
    group: Any = typer.main.get_command(app)
    found: dict[str, Any] = group.commands
    return found


def command_section(name: str) -> str:
    """A heading, what the command does, and a table of its arguments and options."""
    command = commands()[name]
    lines = [f"## ddm {name}", "", command.help or "", "", "| | | default |", "|---|---|---|"]
    for option in command.params:
        if option.name != "help":
            lines.append(f"| {_spelling(option)} | {_cell(getattr(option, 'help', '') or '')} | {_default(option)} |")
    return "\n".join([*lines, ""])


def _spelling(option: Any) -> str:
    if option.param_type_name == "argument":
        return f"`{option.name.upper()}`"
    return ", ".join(f"`{word}`" for word in [*option.opts, *option.secondary_opts])


def _default(option: Any) -> str:
    if option.required:
        return "must be given"
    unset = option.default is None or option.default is False or callable(option.default)
    return "" if unset else f"`{option.default}`"


def _cell(text: str) -> str:
    return html.escape(text).replace("|", "\\|")


def named_outside(markdown: str, source: str) -> str:
    """Relative links that leave docs/ become the name of the file: the site does not hold it."""

    def name(match: re.Match[str]) -> str:
        text, address = match.group(1), match.group(2)
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(source), address))
        if re.match(r"[a-z]+:|/", address) or path.startswith("docs/"):
            return match.group(0)
        return text if path in text else f"{text} (`{path}`)"

    return _LINK.sub(name, markdown)


def notebook_page(path: Path) -> str:
    """A notebook as markdown: text, code, and what the code gave."""
    notebook = nbformat.read(path, as_version=4)
    parts = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        else:
            parts.append(f"```python\n{cell.source}\n```")
            parts += [_output(output) for output in cell.outputs]
    parts.insert(1, f"The notebook itself: [{path.name}]({path.name}).")
    return "\n\n".join(parts) + "\n"


def _output(output: Any) -> str:
    """One output of a cell, in the richest form it has."""
    if output.output_type == "stream":
        return _block(f"<pre>{html.escape(output.text)}</pre>")
    data = output.data
    if "image/png" in data:
        base64.b64decode(data["image/png"])  # nothing else can hide here
        return _block(f'<img alt="picture" src="data:image/png;base64,{"".join(data["image/png"].split())}">')
    if "text/html" in data:
        return _block(data["text/html"])
    return _block(f"<pre>{html.escape(data['text/plain'])}</pre>")


def _block(inside: str) -> str:
    whole = re.sub(r"\n\s*\n", "\n", inside)  # a blank line would end what markdown leaves alone
    return f'<div class="output">{whole}</div>'
