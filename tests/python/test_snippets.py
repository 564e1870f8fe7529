# SPDX-License-Identifier: Apache-2.0
"""The snippets of README.md and docs/: those in Python run in the order of their page, in one namespace for each page, on
the CPU; and the commands of `octavo` exist, with the flags that are written there.

What an HTML comment above a block says:

    <!-- not run: REASON -->     Python that needs a GPU, a download or several processes: it is only compiled
    <!-- run first: CODE -->     Python that makes the variables which the reader is assumed to have
    <!-- run -->                 a block for the shell whose lines are cheap: they are run, each in turn

The tests need PyTorch; a page that needs transformers or JAX is skipped without them.
"""

import importlib
import os
import pathlib
import re
import shlex
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = os.environ.get("OCTAVO_COMMAND")
BLOCK = re.compile(r"^<!-- run first:(?P<setup>.*?)-->$"
                   r"|(?:^<!--(?P<note>[^\n]*)-->\n)?^ *```(?P<language>\w*)\n(?P<code>.*?)^ *```$",
                   re.MULTILINE | re.DOTALL)


def name_of(page):
    return page.relative_to(ROOT).as_posix()


def blocks(page):
    """(language, what the comment above says, line of the page, text) of every block."""
    text = page.read_text()
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("code" if found["setup"] is None else "setup")) + 1
        if found["setup"] is not None:
            yield "setup", "", line, found["setup"]
        else:
            yield found["language"], (found["note"] or "").strip(), line, found["code"]


def python_code(code):
    """The statements of a block. In a session they follow >>>, and the other lines are what it prints."""
    if not code.lstrip().startswith(">>>"):
        return code
    return "".join(line[4:] for line in code.splitlines(keepends=True) if line.startswith((">>>", "...")))


def python_blocks(page):
    return [block for block in blocks(page) if block[0] in ("python", "py", "setup")]


def commands(page):
    """Every documented call of the command: (whether its block is run, line, words)."""
    for language, note, line, code in blocks(page):
        if language not in ("sh", ""):
            continue
        for offset, text in enumerate(code.replace("\\\n", " ").splitlines()):
            text = text.strip().removeprefix("build/")
            if re.match(r"octavo( |$)", text) and "..." not in text:
                words = shlex.split(text, comments=True)
                end = next((i for i, word in enumerate(words) if word in ("|", ">", "&&")), len(words))
                yield note == "run", line + offset, words[1:end]


@pytest.mark.parametrize("page", [p for p in PAGES if python_blocks(p)], ids=name_of)
def test_python(page, monkeypatch, tmp_path):
    pytest.importorskip("torch")
    executed = "\n".join(code for _, note, _, code in python_blocks(page) if not note)
    for framework in ("jax", "transformers"):
        if re.search(rf"^(import|from) {framework}\b", executed, re.MULTILINE):
            pytest.importorskip(framework)
    monkeypatch.chdir(tmp_path)
    importlib.import_module("octavo.torch").reset_fallbacks()  # of other pages
    namespace = {"__name__": "snippet"}
    for language, note, line, code in python_blocks(page):
        # As many empty lines as there are above it, so that a failure names the line of the page.
        compiled = compile("\n" * (line - 1) + python_code(code), str(page), "exec")
        if not note.startswith("not run: "):
            exec(compiled, namespace)


def test_what_is_not_run_has_a_reason():
    reasons = ("needs a GPU", "needs several processes", "downloads a model")
    for page in PAGES:
        for _, note, line, _ in python_blocks(page):
            assert not note or note.removeprefix("not run: ") in reasons, f"{name_of(page)}:{line}: {note}"


def run(words, folder):
    return subprocess.run([COMMAND, *words], cwd=folder, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def flags_of(tmp_path_factory):
    """The flags in the help of a subcommand; None if there is no such subcommand."""
    known = {}

    def flags(path):
        if path not in known:
            told = run(["help", *path], tmp_path_factory.getbasetemp())
            known[path] = set(re.findall(r"--?[a-zA-Z][a-z0-9-]*", told.stdout)) if told.returncode == 0 else None
        return known[path]
    return flags


@pytest.mark.skipif(COMMAND is None, reason="the command was not built")
def test_documented_commands_exist(flags_of):
    checked = 0
    for page in PAGES:
        for _, line, words in commands(page):
            path = ()
            while len(path) < len(words) and not words[len(path)].startswith("-") \
                    and flags_of((*path, words[len(path)])) is not None:
                path = (*path, words[len(path)])
            at = f"{name_of(page)}:{line}"
            assert path or not words or words[0].startswith("-"), f"{at}: no subcommand {words[0]}"
            for word in words[len(path):]:
                flag = word.split("=")[0]
                if re.match(r"--?[a-zA-Z]", flag):
                    assert flag in flags_of(path), f"{at}: octavo {' '.join(path)} has no {flag}"
                    checked += 1
    assert checked > 50


@pytest.mark.skipif(COMMAND is None, reason="the command was not built")
def test_cheap_commands_run(tmp_path):
    ran = 0
    for page in PAGES:
        for cheap, line, words in commands(page):
            if cheap:
                finished = run(words, tmp_path)
                assert finished.returncode == 0, f"{name_of(page)}:{line}: {finished.stderr}"
                ran += 1
    assert ran > 5
