# SPDX-License-Identifier: Apache-2.0
"""How Sphinx makes the site; build.sh gathers its pages."""

import re
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]

project = "gpurx"
copyright = "the gpurx authors. Apache-2.0; kernel-support is GPL-2.0"
version = release = re.search(r"project\(\s*gpurx\s+VERSION\s+([\d.]+)", (REPO / "CMakeLists.txt").read_text()).group(1)

extensions = ["breathe", "myst_parser"]
breathe_projects = {"gpurx": str(REPO / "build/docs-source/xml")}
breathe_default_project = "gpurx"
breathe_show_include = False
myst_heading_anchors = 4
exclude_patterns = ["xml"]
# Indented blocks are commands and pictures of characters; fenced ones say what they are.
highlight_language = "none"
primary_domain = None
toc_object_entries_show_parents = "hide"
add_module_names = False
# Longer declarations have a line for each parameter.
cpp_maximum_signature_line_length = 90
python_maximum_signature_line_length = 90
cpp_index_common_prefix = ["gpurx::", "gpurx::ingest::"]
modindex_common_prefix = ["gpurx."]
python_display_short_literal_types = True

html_theme = "furo"
html_title = "gpurx"
html_static_path = [str(Path(__file__).parent / "static")]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_domain_indices = True
html_last_updated_fmt = None
pygments_style = "friendly"
pygments_dark_style = "native"
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {
        "color-brand-primary": "#1b5e20",
        "color-brand-content": "#1b5e20",
        "color-sidebar-link-text": "#3b3f45",
        "color-sidebar-link-text--top-level": "#24282d",
    },
    "dark_css_variables": {
        "color-brand-primary": "#8bd48f",
        "color-brand-content": "#8bd48f",
        "color-sidebar-link-text": "#b4bac2",
        "color-sidebar-link-text--top-level": "#cdd3da",
    },
}
