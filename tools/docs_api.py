# SPDX-License-Identifier: Apache-2.0
"""The reference pages of the documentation, from the public headers, the Python stubs and the docstrings.

tools/docs_site.py puts them into the site; nothing is built or imported, so that a page cannot depend on a machine.
"""

import ast
import pathlib
import re
import textwrap

# Pages of the site, and the headers that each describes.
HEADERS = {
    "reference/cpp.md": ("C++", ["octavo.hpp", "block_mask.hpp"]),
    "reference/kv_cache_cpp.md": ("KV caches in C++", ["kv_cache.hpp"]),
    "reference/c.md": ("C", ["octavo.h"]),
    "reference/headers.md": ("Checks, benchmarks and kernels in C++", [
        "evidence.hpp", "accuracy.hpp", "gate.hpp", "bundle.hpp", "counters.hpp", "kernels.hpp", "emulator.hpp",
        "ladder.hpp", "evolve.hpp", "file.hpp"]),
}
PYTHON_PAGE = "reference/python.md"
# Of each module, in this order: (heading, file below python/octavo, names; None for those of __all__).
PYTHON_PARTS = [
    ("octavo", "_octavo.pyi", ["attention", "attention_backward", "explain", "devices", "quantize", "dequantize",
                               "set_cpu_threads", "random_normal"]),
    ("octavo", "_quantized.py", ["Quantized"]),
    ("octavo", "_kv_cache.py", ["KvCache"]),
    ("octavo", "_block_mask.py", ["BlockMask"]),
    ("octavo", "_merge_states.py", ["merge_states"]),
    ("octavo", "_results.py", ["Explanation", "DeviceInfo"]),
    ("octavo.torch", "torch.py", ["sdpa", "attention", "fallbacks", "reset_fallbacks", "FallbackWarning"]),
    ("octavo.jax", "jax.py", ["attention"]),
    ("octavo.transformers", "transformers.py", ["register"]),
    ("octavo.distributed", "distributed.py", ["context_parallel", "decode", "explain", "merge_states", "positions",
                                              "shard", "unshard"]),
]


# --- Headers

def without_private(lines):
    """A class without what is below private:, which ends at the brace of the class."""
    kept, hidden = [], False
    for line in lines:
        if re.match(r"^ ?private:|^ ?protected:", line):
            hidden = True
        if hidden and re.match(r"^}", line):
            hidden = False
        if not hidden:
            kept.append(line)
    while len(kept) > 1 and not kept[-2].strip():
        del kept[-2]
    return kept


def comment_text(lines):
    """The words of a comment of either kind. Indented lines are code."""
    words = []
    for line in lines:
        if "SPDX-License-Identifier" in line:
            continue
        line = re.sub(r"^\s*(//|/\*+|\*/| \*/| \*)", "", line)
        words.append(re.sub(r"\*/\s*$", "", line).rstrip())
    shared = min((len(w) - len(w.lstrip()) for w in words if w.strip()), default=0)
    return prose("\n".join(w[shared:] if w.strip() else "" for w in words).strip())


def prose(text):
    """Markdown: what is indented, in a comment or a docstring, is code."""
    parts = []
    for paragraph in re.split(r"\n\s*\n", text):
        runs = []
        for line in paragraph.split("\n"):
            is_code = line.startswith("  ")
            if not runs or runs[-1][0] != is_code:
                runs.append((is_code, []))
            runs[-1][1].append(line)
        for is_code, lines in runs:
            body = textwrap.dedent("\n".join(lines))
            parts.append(f"```cpp\n{body}\n```" if is_code else escaped(body))
    return "\n\n".join(parts)


def escaped(text):
    return text.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")


def paragraphs(lines):
    """The declarations at the top level, each with the comment above it. A blank line ends one."""
    depth, current = 0, []
    in_namespace = re.compile(r"^(inline )?namespace [\w:]+ \{|^extern \"C\" \{|^\}  // namespace|^\}$")
    for line in lines:
        if depth == 0 and (not line.strip() or in_namespace.match(line) or line.startswith("#")):
            if current:
                yield current
            current = []
            continue
        current.append(line)
        code = re.sub(r"//.*|/\*.*?\*/|\"[^\"]*\"", "", line)
        depth += code.count("{") - code.count("}") + code.count("(") - code.count(")")
    if current:
        yield current


def declared(code):
    """What a paragraph declares: types, then functions."""
    joined = "\n".join(line for line in code if not line.startswith(" "))
    names = re.findall(r"^(?:typedef )?(?:class|struct|enum(?: class)?)\s+(?:\[\[\w+\]\]\s+)?(?:OCTAVO_API\s+)?(\w+)",
                       joined, re.MULTILINE)
    if not names:
        names = re.findall(r"^(?:OCTAVO_\w*API|inline|constexpr|template)?[^\n=(]*?\b(\w+)\(", joined, re.MULTILINE)
    if not names:
        names = re.findall(r"^(?:inline )?constexpr [^\n=({]*?\b(\w+)(?: =|\{|\[)", joined, re.MULTILINE)
    if not names:
        names = re.findall(r"^using (\w+)|^typedef .*?(\w+);", joined, re.MULTILINE)
        names = [a or b for a, b in names]
    return list(dict.fromkeys(name for name in names if not name.startswith("OCTAVO_")))


def header_part(text):
    """Markdown of one header: its own comment, then each declaration."""
    lines = text.splitlines()
    first = next(i for i, line in enumerate(lines) if not line.lstrip().startswith(("//", "/*", "*")) or
                 line.startswith("*/"))
    parts = [comment_text(lines[:first])]
    for block in paragraphs(lines[first:]):
        comment = []
        in_c_comment = False
        for line in block:
            in_c_comment = in_c_comment or line.startswith("/*")
            if not in_c_comment and not line.startswith("//"):
                break
            comment.append(line)
            in_c_comment = in_c_comment and "*/" not in line
        code = without_private(block[len(comment):])
        if comment and comment[0].startswith("// -----"):
            title, _, rest = comment_text(comment[1:]).partition("\n\n")
            parts.append(f"## {title.rstrip('.')}" + (f"\n\n{rest}" if rest else ""))
            continue
        names = declared(code)
        if not names:
            parts += [comment_text(comment)] if comment and not code else []
            continue
        shown = ", ".join(f"`{name}`" for name in names[:4]) + (", ..." if len(names) > 4 else "")
        listing = "\n".join(code).replace("OCTAVO_API ", "").replace("OCTAVO_C_API ", "")
        parts += [f"### {shown}", comment_text(comment), f"```cpp\n{listing}\n```"]
    return "\n\n".join(part for part in parts if part)


def header_page(root, title, names):
    """One page for some headers."""
    parts = [f"# {title}", "Made from the comments of the public headers."]
    for name in names:
        include = f"`#include <octavo/{name}>`"
        parts.append(f"## {name}\n\n{include}" if len(names) > 1 else include)
        body = header_part((root / "include/octavo" / name).read_text())
        parts.append(re.sub(r"^## ", "### ", body, flags=re.MULTILINE) if len(names) > 1 else body)
    return "\n\n".join(parts) + "\n"


# --- Python

def native_docstrings(root):
    """The docstrings of the functions in C++, by name, without the signature at their start."""
    source = (root / "python/src/module.cc").read_text()
    found = {}
    for name, constant in re.findall(r'method\("(\w+)", \w+, (\w+)\)', source):
        raw = re.search(rf'{constant}\s*=.*?R"doc\((.*?)\)doc"', source, re.DOTALL)[1]
        found[name] = raw.partition("\n--\n")[2].strip()
    for name, call in re.findall(r'm\.def\(\s*"(\w+)",(.*?)\);\n', source, re.DOTALL):
        literals = re.search(r'((?:\s*"(?:[^"\\]|\\.)*")+)\s*$', call)
        if literals:
            pieces = re.findall(r'"((?:[^"\\]|\\.)*)"', literals[1])
            found[name] = "".join(pieces).replace("\\n", "\n").replace('\\"', '"')
    return found


def signature(node, module):
    text = ast.unparse(ast.FunctionDef(node.name, node.args, [ast.Expr(ast.Constant(...))], [], node.returns,
                                       lineno=0))
    line = text.replace("def ", f"{module}." if module else "", 1).removesuffix(":\n    ...")
    if len(line) <= 96:
        return line
    inner, _, result = line.partition("(")[2].rpartition(")")
    arguments = [re.sub(r"^(\w+: .*?)=", r"\1 = ", a.strip()) for a in re.split(r",\s*(?![^\[({]*[\])}])", inner)]
    unbroken = ", ".join(a.replace(" ", "\0") for a in arguments)  # a line ends after an argument
    body = textwrap.fill(unbroken, 92, initial_indent="    ", subsequent_indent="    ",
                         break_on_hyphens=False).replace("\0", " ")
    return f"{line.partition('(')[0]}(\n{body},\n){result}"


def python_prose(text):
    """A docstring. Its tables of parameters, which are aligned, stay as they are."""
    parts = []
    for paragraph in re.split(r"\n\s*\n", text):
        aligned = re.search(r"^\w[\w, ]*?  +\S", paragraph, re.MULTILINE)
        if aligned or paragraph.startswith("    "):
            language = "python" if paragraph.startswith("    ") else "text"
            parts.append(f"```{language}\n{textwrap.dedent(paragraph)}\n```")
        else:
            parts.append(escaped(paragraph))
    return "\n\n".join(parts)


def described(node, module, level, native):
    """A function or a class with its public methods."""
    doc = ast.get_docstring(node) or native.get(node.name, "")
    parts = [f"{'#' * level} `{module + '.' if level == 3 else ''}{node.name}`"]
    if isinstance(node, ast.ClassDef):
        parts.append(python_prose(doc))
        for method in node.body:
            if isinstance(method, ast.FunctionDef) and not method.name.startswith("_") \
                    and ast.get_docstring(method):
                parts.append(described(method, "", 4, {}))
    else:
        parts += [f"```python\n{signature(node, module)}\n```", python_prose(doc)]
    return "\n\n".join(part for part in parts if part)


def python_page(root):
    native = native_docstrings(root)
    parts = ["# Python", "Made from the stubs and the docstrings; `help(octavo.attention)` shows the same."]
    heading = None
    for module, path, names in PYTHON_PARTS:
        if module != heading:
            parts.append(f"## {module}")
            heading = module
        tree = ast.parse((root / "python/octavo" / path).read_text())
        nodes = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        parts += [described(nodes[name], module, 3, native if path.endswith(".pyi") else {}) for name in names]
    return "\n\n".join(parts) + "\n"


def pages(root):
    """{page of the site: Markdown}"""
    root = pathlib.Path(root)
    made = {path: header_page(root, *what) for path, what in HEADERS.items()}
    made[PYTHON_PAGE] = python_page(root)
    return made
