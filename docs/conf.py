# SPDX-License-Identifier: Apache-2.0
"""Sphinx's configuration: `make docs` builds the site with it.

The pages are plain Markdown that reads the same on a code host, so the navigation
is here and not in a page.
"""

from sphinx.application import Sphinx

project = "vllm-coordinates"
html_title = project
copyright = "the vllm-coordinates contributors"

extensions = ["myst_parser"]
# Links to headings are those that code hosts make of them.
myst_heading_anchors = 4

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False

NAVIGATION = {
    "Start": ("quickstart",),
    "The wire": ("contract", "entrances", "evolution"),
    "Consumers": ("consumers", "gateway", "routing"),
    "Operators": ("operating", "tool", "performance", "limits"),
    "Contributors": ("patches", "testing", "releasing"),
}
"""The pages by the heading that they stand under."""


def add_navigation(app: Sphinx, name: str, source: list[str]) -> None:
    """Put every page into the tree of which the first page is the root."""
    if name != app.config.root_doc:
        return
    for heading, pages in NAVIGATION.items():
        listed = "\n".join(pages)
        source[0] += (
            f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{listed}\n```\n"
        )


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_navigation)
