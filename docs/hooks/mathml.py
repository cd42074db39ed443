# SPDX-License-Identifier: Apache-2.0
"""Formulas of the site as MathML, which browsers show without a script and without a network."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

_FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](?P<tex>.+?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(text: str, **_: Any) -> str:
    """MkDocs calls it with each page's HTML, in which ``pymdownx.arithmatex`` has marked the formulas."""
    return _FORMULA.sub(_mathml, text)


def _mathml(match: re.Match[str]) -> str:
    return convert(html.unescape(match["tex"]).strip(), display="block" if match[1] == "div" else "inline")
