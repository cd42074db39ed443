# SPDX-License-Identifier: Apache-2.0
"""The site builds without a warning and loads nothing from a network."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from written import PAGES, ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where it was built; every warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(build, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return folder


def test_every_page_is_in_the_site_and_nothing_in_it_is_loaded_from_elsewhere(site: Path):
    built = [site / page.relative_to(ROOT / "docs").with_suffix(".html") for page in PAGES]
    loaded = [
        url
        for page in built
        for url in re.findall(r'(?:src|rel="stylesheet" href)="([^"]+)"', page.read_text(encoding="utf-8"))
    ]
    assert loaded and not [url for url in loaded if "//" in url]


def test_formulas_are_mathml_with_nothing_of_tex_left(site: Path):
    for page in (ROOT / "docs" / "algorithms").glob("*.md"):
        html = (site / "algorithms" / f"{page.stem}.html").read_text(encoding="utf-8")
        assert html.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">') >= 1
        assert "arithmatex" not in html
        assert not re.search(r"\\(frac|text|log|pi|sum|qquad|left|big)", html)
