# SPDX-License-Identifier: Apache-2.0
"""Tables of options in the documentation, made from the Config classes: ``python docs/hooks/option_tables.py``.

A page says where one stands: ``<!-- options: algorithms/grpo -->`` for a plug-in, or the class itself,
``<!-- options: m2flow.engines.base:SamplingConfig -->``; the lines after it that begin with a bar are the table. After
``as`` stands what the options are under on the command line of examples/reasoning/grpo_math.py.
"""

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from m2flow import registry
from m2flow.cli.option_help import Row, sections
from m2flow.config import Config

DOCS = Path(__file__).resolve().parents[1]
_TABLE = re.compile(r"(<!-- options: (?P<what>\S+?)(?: as (?P<under>\S+))? -->\n\n)(?:\|.*\n)*")


def filled(text: str) -> str:
    """A page's text with its tables as the classes have them now."""
    return _TABLE.sub(lambda match: match[1] + table(match["what"], under=match["under"] or ""), text)


def config_of(what: str) -> type[Config]:
    """The class that ``kind/name`` or ``module:Class`` names."""
    if ":" in what:
        module, _, name = what.partition(":")
        return getattr(importlib.import_module(module), name)
    kind, _, name = what.partition("/")
    return registry.load(kind, name).Config


def table(what: str, *, under: str = "") -> str:
    """One line for each option, those of nested Configs too; not those of plug-ins that an option chooses."""
    lines = ["| Option | Values | Default | Meaning |", "|---|---|---|---|"]
    lines += [_line(row, under) for row in _rows(config_of(what), under)]
    return "\n".join(lines) + "\n"


def _rows(cls: type[Config], under: str) -> Iterator[Row]:
    for section in sections(cls, None, path=tuple(under.split(".")) if under else ()):
        if ": " not in section.title:
            yield from section.rows


def _line(row: Row, under: str) -> str:
    name = row.flag.removeprefix("--").replace("[no-]", "").replace("-", "_").removeprefix(f"{under}.")
    values = row.kind.replace("|", ", ") or "on, off"
    default = "**required**" if row.default is None else f"`{row.default}`"
    return f"| `{name}` | {values} | {default} | {row.text.replace('|', ', ')} |"


def pages() -> list[Path]:
    """All pages of the documentation."""
    return sorted(DOCS.rglob("*.md"))


if __name__ == "__main__":
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (new := filled(text)) != text:
            page.write_text(new, encoding="utf-8")
            print(f"renewed the options in {page.relative_to(DOCS.parent)}")
