# SPDX-License-Identifier: Apache-2.0
"""What is said in the sources: licence lines, docstrings, test names, and what is never said."""

import ast
import re
from collections.abc import Iterator

import pytest
from source_tree import Found, Function, classes, files, functions, identifier, parsed, python, require_none, where

FIRST_LINE = "# SPDX-License-Identifier: Apache-2.0"
NEVER = {
    "a path of somebody's machine": r"/wor" r"k/|/tmp/en" r"v|/ro" r"ot/",
    "the host of a package registry": r"py" r"pi\.org|python" r"hosted|npm" r"js\.|ana" r"conda\.",
    "a document that is not in the repository": r"DES" r"IGN\b|CONT" r"RACTS|share" r"d/(conf|comp|DES)",
    "a secret": r"BEGIN [A-Z ]*PRIVATE" r" KEY|hf_[A-Za-z0-9]{30}",
}
TEXTS = (".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".json", ".jsonl", ".cfg", ".css", ".js", ".jinja", "")


def test_every_file_begins_with_its_licence():
    first_lines = {path: path.read_text(encoding="utf-8").splitlines()[:1] for path in python()}
    require_none(where(path) for path, lines in first_lines.items() if lines != [FIRST_LINE])


@pytest.mark.parametrize("what", NEVER)
def test_the_repository_never_names(what: str):
    found = [
        f"{where(path)}:{number}: {line.strip()[:100]}"
        for path in files(*TEXTS)
        if path.name not in ("tokenizer.json", "constraints.txt", "LICENSE")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(NEVER[what], line)
    ]
    require_none(found)


def test_every_module_says_what_it_is_for():
    require_none(where(path) for path in python("m2flow") if not ast.get_docstring(parsed(path)))


def test_every_public_function_and_class_says_what_it_does():
    public = [found for found in (*functions("m2flow"), *classes("m2flow")) if found.is_public]
    require_none(str(f) for f in public if not _is_special(f) and not ast.get_docstring(f.node))


def _is_special(found: Found) -> bool:
    decorators = found.node.decorator_list
    return found.node.name.startswith("__") or any(identifier(d) in ("overload", "setter") for d in decorators)


def _fields(body: list[ast.stmt]) -> Iterator[tuple[ast.AnnAssign, ast.stmt | None]]:
    for node, follows in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation):
            yield node, follows


def _is_text(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_every_option_is_explained():
    configs = [
        found
        for found in classes("m2flow", "examples")
        if isinstance(found.node, ast.ClassDef)
        and any(identifier(base).endswith("Config") for base in found.node.bases)
    ]
    assert len(configs) > 10
    silent = [
        f"{where(found.path, field)} {found.name}.{identifier(field.target)}"
        for found in configs
        for field, follows in _fields(found.node.body)
        if not _is_text(follows)
    ]
    require_none(silent)


def test_names_of_tests_are_sentences():
    names = [found for found in functions("tests") if found.node.name.startswith("test_")]
    require_none(str(found) for found in names if len(found.node.name.split("_")) < 4)


def _is_stub(found: Found) -> bool:
    assert isinstance(found.node, Function)
    body = found.node.body[bool(ast.get_docstring(found.node)) :]
    only = ast.unparse(body[0]) if len(body) == 1 else ""
    return only in ("pass", "...") or only.startswith("raise NotImplementedError")


def test_nothing_is_left_to_be_written():
    stubs = [found for found in functions("m2flow") if _is_stub(found) and not _is_in_protocol(found)]
    require_none(str(found) for found in stubs)
    notes = re.compile(r"\b(TO" r"DO|FIX" r"ME|X" r"XX|HA" r"CK)\b")
    require_none(where(path) for path in python() if notes.search(path.read_text(encoding="utf-8")))


def _is_in_protocol(found: Found) -> bool:
    inside = [p for p in found.parents if isinstance(p, ast.ClassDef)]
    return any("Protocol" in ast.unparse(base) for parent in inside for base in parent.bases)


def _bare_tensors(found: Found) -> list[str]:
    assert isinstance(found.node, Function)
    given = found.node.args
    annotations = [a.annotation for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)] + [found.node.returns]
    return [ast.unparse(a) for a in annotations if a is not None and identifier(a) == "Tensor"]


def test_public_functions_on_tensors_name_their_axes():
    public = [found for found in functions("m2flow") if found.is_public and _bare_tensors(found)]
    require_none(str(found) for found in public)
