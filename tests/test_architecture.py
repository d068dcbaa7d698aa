"""Who may know whom: imports go downwards only, and only the top speaks to the user."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "mlx_transformer"
# Bottom to top, as docs/architecture.md draws it. A room may import the rooms below it.
FLOORS = (
    {"errors"},
    {"inputs", "cpu"},
    {"config"},
    {"device"},
    {"blocks"},
    {"parts"},
    {"model"},
    {"storage", "tokenizer", "recipes"},
    {"data"},
    {"training", "decoding", "convert", "pictures"},
    {"hub", "measuring", "selfcheck"},
    {"installed"},
    {"serve"},
    {"cli"},
    {"__main__"},
)
TOP = {"cli", "serve", "__main__"}
# `import mlx_transformer` prepares the CPU and names what is public.
FRONT_DOOR = "__init__"


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package by its path, such as `training/step.py`."""
    return {
        str(path.relative_to(PACKAGE)): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def room_of(path: str) -> str:
    return Path(path).parts[0].removesuffix(".py")


def floor_of(room: str) -> int:
    return next(i for i, floor in enumerate(FLOORS) if room in floor)


def imported_rooms(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, room) of each import of the package, those inside functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mlx_transformer"):
            parts = str(node.module).split(".")
            for name in parts[1:2] or [alias.name for alias in node.names]:
                yield node.lineno, name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("mlx_transformer."):
                    yield node.lineno, alias.name.split(".")[1]


def calls(tree: ast.Module) -> Iterator[tuple[int, str, ast.Call]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node.lineno, ast.unparse(node.func), node


def below_the_top() -> dict[str, ast.Module]:
    return {path: tree for path, tree in modules().items() if room_of(path) not in TOP}


def test_every_room_has_a_floor():
    rooms = {room_of(path) for path in modules()} - {FRONT_DOOR}
    listed = {room for floor in FLOORS for room in floor}
    assert rooms <= listed


@pytest.mark.parametrize("path", sorted(set(modules()) - {"__init__.py"}))
def test_imports_go_downwards(path):
    room = room_of(path)
    for line, other in imported_rooms(modules()[path]):
        if other in (room, "__version__"):
            continue
        assert floor_of(other) < floor_of(room), f"{path}:{line}: {room} may not know {other}"


def files_of(module: str) -> set[str]:
    return {f"{module}.py", f"{module}/__init__.py"} & modules().keys()


def test_there_are_no_import_cycles_within_a_room():
    graph: dict[str, set[str]] = {}
    for path, tree in modules().items():
        graph[path] = set()
        for node in tree.body:  # imports inside functions run later
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mlx_transf"):
                base = str(node.module).removeprefix("mlx_transformer").strip(".").replace(".", "/")
                for alias in node.names:
                    inner = f"{base}/{alias.name}".strip("/")
                    graph[path] |= files_of(inner) or files_of(base)
    done: set[str] = set()

    def visit(path: str, way: tuple[str, ...]) -> None:
        assert path not in way, " -> ".join([*way, path])
        if path not in done:
            for other in graph[path] - {path}:
                visit(other, (*way, path))
            done.add(path)

    for path in graph:
        visit(path, ())


@pytest.mark.parametrize("path", sorted(below_the_top()))
def test_only_the_top_prints_and_exits(path):
    if path == "convert/torch_example.py":  # a script that goes along with an export
        return
    for line, function, _ in calls(below_the_top()[path]):
        assert function not in ("print", "input", "sys.exit", "exit"), f"{path}:{line}: {function}"


@pytest.mark.parametrize("path", sorted(below_the_top()))
def test_only_the_top_names_flags(path):
    """In what is raised or warned of; the cards of models show whole commands."""
    for line, function, call in calls(below_the_top()[path]):
        if not re.search(r"(Error|warn)$", function):
            continue
        texts = [n.value for n in ast.walk(call) if isinstance(n, ast.Constant)]
        flags = [
            f for text in texts if isinstance(text, str) for f in re.findall(r"--[a-z]+", text)
        ]
        assert not flags, f"{path}:{line} names {flags}: give InputError `options` instead"


@pytest.mark.parametrize("path", sorted(modules()))
def test_the_device_is_asked_in_one_place(path):
    if room_of(path) in ("device", "cpu"):
        return
    asked = [line for line, function, _ in calls(modules()[path]) if "default_device" in function]
    assert not asked, f"{path}:{asked} asks for the device: device.py is the only door"


@pytest.mark.parametrize("path", sorted(modules()))
def test_every_module_says_what_it_is(path):
    assert ast.get_docstring(modules()[path]), f"{path} has no docstring"


def test_one_word_has_one_meaning():
    """Each name of a class or a type is given once."""
    homes: dict[str, set[str]] = {}
    for path, tree in modules().items():
        for node in tree.body:
            for name in named_types(node):
                homes.setdefault(name, set()).add(path)
    twice = {name: sorted(paths) for name, paths in homes.items() if len(paths) > 1}
    assert not twice, f"rename all but one: {twice}"


def named_types(node: ast.stmt) -> list[str]:
    """A class, or a type with a name such as `KeysValues = tuple[...]`; type variables are not."""
    if isinstance(node, ast.ClassDef):
        return [node.name]
    if not isinstance(node, ast.Assign) or isinstance(node.value, ast.Call):
        return []
    names = [target.id for target in node.targets if isinstance(target, ast.Name)]
    return [name for name in names if re.fullmatch("[A-Z][a-z]+([A-Z][a-z]*)*", name)]
