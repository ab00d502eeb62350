"""Hooks of the site: the home page, linked files, references.

mkdocs calls the functions `on_...`; see https://www.mkdocs.org/user-guide/configuration/#hooks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from os.path import relpath
from pathlib import Path
from typing import Any

import griffe
import typer
import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.cli import get_docs_for_click

import onnxfq
from onnxfq import errors
from onnxfq.cli.known_names import fill_names
from onnxfq.cli.main import COMMANDS, PANELS, build_app
from onnxfq.errors import OnnxfqError
from onnxfq.numerics.qtypes import QTYPES
from onnxfq.targets.recipe_schema import recipe_schema

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(?=\))")
MARK = re.compile(r"^<!-- generated: (\w+) -->$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add README as the home page, and the files outside docs/ that pages link to, and so on."""
    found = [ROOT / "README.md"]
    waiting = [ROOT / "README.md", *(ROOT / "docs" / file.src_uri for file in files.documentation_pages())]
    while waiting:
        page = waiting.pop()
        for _, link, _ in LINK.findall(page.read_text(encoding="utf-8")):
            target = _resolve(page, link)
            if target not in found and ROOT / "docs" not in target.parents:
                found.append(target)
                waiting += [target] if target.suffix == ".md" else []
    for path in found:
        files.append(File.generated(config, _site_path(path), abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at places in the site, and put generated text where a comment asks for it."""
    source = Path(page.file.abs_src_path or "")

    def relink(link: re.Match[str]) -> str:
        target = _site_path(_resolve(source, link[2]))
        return link[1] + relpath(target, Path(page.file.src_uri).parent) + (link[3] or "")

    return MARK.sub(lambda mark: GENERATED[mark[1]](), LINK.sub(relink, markdown))


def _resolve(page: Path, link: str) -> Path:
    """Return the file that a link of `page` names; for a folder its README."""
    target = (page.parent / link).resolve()
    return target / "README.md" if target.is_dir() else target


def _site_path(path: Path) -> str:
    """Return the place of a file of the checkout among the sources of the site."""
    if path == ROOT / "README.md":
        return "index.md"
    return str(path.relative_to(ROOT / "docs" if ROOT / "docs" in path.parents else ROOT))


def commands() -> str:
    """Return the help of all subcommands, by the panels of --help."""
    root: Any = typer.main.get_command(build_app(COMMANDS))
    context = typer.Context(root, info_name="onnxfq")
    lines = []
    for panel, held in PANELS.items():
        lines.append(f"## {panel}\n")
        for name in held:
            fill_names(root.commands[name])
            text = get_docs_for_click(
                obj=root.commands[name], ctx=context, name=name, indent=2, call_prefix="onnxfq"
            )
            lines.append(text.replace(f"### `onnxfq {name}`", f"### {name}"))
    return "\n".join(lines)


def fields() -> str:
    """Return the fields of recipe files as tables, one for each part."""
    schema = recipe_schema()
    parts = {"Recipe": schema, **schema["$defs"]}
    lines = []
    for part, held in parts.items():
        lines += [f"## {_heading(part)}\n", "| field | values | meaning |", "|---|---|---|"]
        for name, field in held["properties"].items():
            values = ", ".join(dict.fromkeys(_values(field)))
            text = field["description"].rstrip(".").replace("None", "`null`").replace("|", "\\|")
            value = field.get("default")
            default = f"; default: `{value}`" if isinstance(value, str) else ""
            lines.append(f"| `{name}` | {values} | {text}{default} |")
        lines.append("")
    return "\n".join(lines)


def _heading(part: str) -> str:
    return part.removesuffix("Scheme")


def _values(field: dict[str, Any]) -> Iterator[str]:
    """Yield the values that a field of a JSON schema takes, in words."""
    for choice in field.get("anyOf", ()):
        yield from _values(choice)
    if field.get("enum") == list(QTYPES):
        yield "a [number format](#number-formats)"
    else:
        yield from (f"`{value}`" for value in field.get("enum", ()))
    if "$ref" in field:
        heading = _heading(field["$ref"].rpartition("/")[2])
        yield f"[{heading.lower()}](#{heading.lower()})"
    elif "enum" not in field and "type" in field:
        yield WORDS[field["type"]]


WORDS = {
    "string": "text",
    "boolean": "`true`, `false`",
    "integer": "integer",
    "number": "number",
    "null": "`null`",
    "array": "list",
}


def names() -> str:
    """Return the public names by kind, for mkdocstrings to describe."""
    # torch need not be installed: griffe reads the source.
    torch_names = griffe.load("onnxfq.torch", search_paths=[ROOT]).exports or ()
    found = [name for name, value in vars(errors).items() if isinstance(value, type)]
    lines = []
    for module, held in (
        ("onnxfq", [name for name in onnxfq.__all__ if not name.startswith("__") and name != "plot"]),
        ("onnxfq.plot", onnxfq.plot.__all__),
        ("onnxfq.torch", sorted(map(str, torch_names))),
        ("onnxfq.errors", [name for name in found if issubclass(getattr(errors, name), OnnxfqError)]),
    ):
        classes = [name for name in held if name[0].isupper() and not name.isupper()]
        functions = [name for name in held if name not in classes]
        for kind, some in (("functions", functions), ("classes", classes)):
            lines += [f"## {module}: {kind}\n"] if some else []
            lines += [f"::: {module}.{name}\n" for name in some]
    return "\n".join(lines)


GENERATED = {"commands": commands, "fields": fields, "names": names}
"""Generated text by the name in a comment of a page."""
