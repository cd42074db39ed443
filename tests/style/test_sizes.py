# SPDX-License-Identifier: Apache-2.0
"""Files, functions, nesting and parameter lists stay small."""

import ast
from statistics import median

from source_tree import Found, Function, functions, python, require_none, where

MAX_FILE_LINES, MAX_FUNCTION_LINES, MEDIAN_FUNCTION_LINES = 400, 60, 10
MAX_NESTING, MAX_PARAMETERS, MAX_POSITIONAL, MAX_EXAMPLE_LINES = 3, 6, 2, 60
BLOCKS = ast.If | ast.For | ast.AsyncFor | ast.While | ast.With | ast.AsyncWith | ast.Try | ast.Match


def _num_lines(found: Found) -> int:
    return (found.node.end_lineno or 0) - found.node.lineno + 1


def test_files_have_at_most_400_lines():
    lengths = {where(path): len(path.read_text(encoding="utf-8").splitlines()) for path in python()}
    require_none(f"{name}: {number}" for name, number in lengths.items() if number > MAX_FILE_LINES)


def test_functions_have_at_most_60_lines():
    require_none(f"{f}: {_num_lines(f)}" for f in functions(*CODE, "tests") if _num_lines(f) > MAX_FUNCTION_LINES)


def test_half_of_all_functions_have_at_most_10_lines():
    assert median(_num_lines(found) for found in functions("m2flow")) <= MEDIAN_FUNCTION_LINES


def test_examples_have_at_most_60_lines():
    lengths = {where(path): len(path.read_text(encoding="utf-8").splitlines()) for path in python("examples")}
    require_none(f"{name}: {number}" for name, number in lengths.items() if number > MAX_EXAMPLE_LINES)


CODE = ("m2flow", "examples", "benchmarks")


def _depth(node: ast.AST) -> int:
    """How many blocks stand in each other below ``node``, those of inner functions not counted."""
    return max((_depth_of_child(node, child) for child in ast.iter_child_nodes(node)), default=0)


def _depth_of_child(node: ast.AST, child: ast.AST) -> int:
    if isinstance(child, Function | ast.ClassDef | ast.Lambda):
        return 0
    is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
    return _depth(child) + (isinstance(child, BLOCKS) and not is_elif)


def test_blocks_stand_at_most_three_deep_in_each_other():
    require_none(f"{f}: {_depth(f.node)}" for f in functions(*CODE, "tests") if _depth(f.node) > MAX_NESTING)


def _parameters(found: Found) -> tuple[list[str], list[str]]:
    """Names of the positional and of the keyword-only parameters, without self and cls."""
    assert isinstance(found.node, Function)
    given = found.node.args
    positional = [a.arg for a in (*given.posonlyargs, *given.args)]
    is_method = bool(found.parents) and isinstance(found.parents[-1], ast.ClassDef)
    is_static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in found.node.decorator_list)
    return positional[is_method and not is_static :], [a.arg for a in given.kwonlyargs]


def _is_special(found: Found) -> bool:
    """``__exit__`` and its like have the signature that Python gives them."""
    return found.node.name.startswith("__") and found.node.name not in ("__init__", "__new__", "__call__")


def test_functions_take_at_most_six_parameters_two_of_them_by_position():
    wrong = []
    for found in functions(*CODE):
        positional, keyword_only = _parameters(found)
        too_many = len(positional) > MAX_POSITIONAL or len(positional) + len(keyword_only) > MAX_PARAMETERS
        if too_many and not _is_special(found):
            wrong.append(f"{found}({', '.join(positional)}, *, {', '.join(keyword_only)})")
    require_none(wrong)
