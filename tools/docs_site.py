# SPDX-License-Identifier: Apache-2.0
"""What makes a site of docs/, called by MkDocs (mkdocs.yml): the reference pages, and the files of the repository that
pages link to, which become part of the site."""

import os
import pathlib
import posixpath
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import docs_api  # noqa: E402

LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)(#[^)\s]*)?(\))")
SNIPPET_COMMENT = re.compile(r"^<!-- (?:not run:|run first:|run).*?-->\n", re.MULTILINE | re.DOTALL)


def source_of(page):
    """The path of a page in the repository. Pages of evidence/ keep their path in the site."""
    return page if page.startswith("evidence/") else f"docs/{page}"


def leaves_docs(page, target):
    """The path in the repository of a link that leaves docs/; None for all others."""
    if re.match(r"[a-z]+:", target):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source_of(page)), target))
    return None if path.startswith(("docs/", "..")) else path


def in_site(path):
    """Where a file of the repository is in the site: pages of evidence/ as pages, others as they are."""
    return path if path.startswith("evidence/") else f"repository/{path}"


def pages_of_repository():
    """The pages outside docs/ that are pages of the site."""
    return sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "evidence").rglob("*.md"))


def linked_files():
    """The other files that a page of docs/ or evidence/ links to."""
    found = set()
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    for page in pages + pages_of_repository():
        text = (ROOT / source_of(page)).read_text()
        for _, target, _, _ in LINK.findall(text):
            path = leaves_docs(page, target)
            if path and (ROOT / path).is_file() and not path.endswith(".md"):
                found.add(path)
    return sorted(found)


def on_files(files, config):
    from mkdocs.structure.files import File
    for path, text in docs_api.pages(ROOT).items():
        files.append(File.generated(config, path, content=text))
    for path in pages_of_repository():
        files.append(File.generated(config, path, content=(ROOT / path).read_text()))
    for path in linked_files():
        files.append(File.generated(config, in_site(path), content=(ROOT / path).read_bytes()))
    return files


def on_page_markdown(markdown, page, config, files):
    here = page.file.src_uri

    def moved(found):
        path = leaves_docs(here, found[2])
        target = found[2]
        if path:
            target = os.path.relpath(in_site(path), posixpath.dirname(here) or ".")
        elif here.startswith("evidence/") and not re.match(r"[a-z]+:", target):
            inside = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
            if inside.startswith("docs/"):  # a page of evidence/ that links to one of docs/
                target = os.path.relpath(inside.removeprefix("docs/"), posixpath.dirname(here))
        return f"{found[1]}{target}{found[3] or ''}{found[4]}"
    return LINK.sub(moved, SNIPPET_COMMENT.sub("", markdown))
