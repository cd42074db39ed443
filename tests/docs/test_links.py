# SPDX-License-Identifier: Apache-2.0
"""Every link inside the repository leads somewhere."""

from pathlib import Path

import pytest
from written import PAGES, ROOT, TOP, anchor, headings, links


@pytest.mark.parametrize("page", [*TOP, *PAGES], ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file_and_a_heading_in_it(page: Path):
    broken = []
    for link in links(page.read_text(encoding="utf-8")):
        if "://" in link:
            continue
        path, _, name = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        anchors = [anchor(h) for h in headings(target.read_text(encoding="utf-8"))] if target.suffix == ".md" else []
        if not target.exists() or (name and name not in anchors):
            broken.append(link)
    assert not broken


def test_the_links_that_are_checked_are_found():
    assert sum(len(links(page.read_text(encoding="utf-8"))) for page in [*TOP, *PAGES]) > 60
