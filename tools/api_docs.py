"""Write docs/api.md from the docstrings of what `import mlx_transformer` offers."""

import inspect
import re
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any

import mlx_transformer

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
HEAD = """\
# Python API

Made from the docstrings by `python tools/api_docs.py`. All names are those of `mlx_transformer`:

```python
from mlx_transformer import load

print(load().translate("Good morning.").text)
```
"""


def page() -> str:
    names = [name for name in mlx_transformer.__all__ if not name.startswith("_")]
    functions = [name for name in names if name[0].islower()]
    classes = [name for name in names if name[0].isupper()]
    entries = [entry(name, getattr(mlx_transformer, name)) for name in functions + classes]
    return "\n".join([HEAD, *entries])


def entry(name: str, thing: Any) -> str:
    """A heading, the signature, the docstring, then fields and public methods."""
    lines = [f"## {name}\n"]
    if inspect.isfunction(thing):
        lines.append(code(signature(name, thing)))
    lines.append(text(thing))
    if is_dataclass(thing):
        lines += ["| field | default |", "|---|---|"]
        lines += [f"| `{f.name}: {kind(f)}` | {default(f)} |" for f in fields(thing)]
        lines.append("")
    for method, function in vars(thing).items() if inspect.isclass(thing) else ():
        lines += member(name, method, function)
    return "\n".join(lines)


def member(owner: str, name: str, thing: Any) -> list[str]:
    function = getattr(thing, "__func__", thing)
    if name.startswith("_") or not inspect.isfunction(function) or not function.__doc__:
        return []
    return [f"\n### {owner}.{name}\n", code(signature(name, function)), text(function)]


def signature(name: str, function: Any) -> str:
    """Without `self`, quotes around types, and the modules that types come from."""
    spelled = re.sub(r"^\((self|cls)(, )?", "(", str(inspect.signature(function)))
    spelled = re.sub(
        r"\b(mlx_transformer|collections|typing|pathlib)\.[\w.]*?(?=[A-Z])", "", spelled
    )
    spelled = spelled.replace("mlx.core.", "mx.")
    return name + re.sub(r"(= '[^']*')|['\"]", lambda found: found[1] or "", spelled)


def code(line: str) -> str:
    return f"```python\n{line}\n```\n"


def text(thing: Any) -> str:
    """The docstring of its own: that of a class it builds on says little."""
    return inspect.cleandoc(thing.__doc__ or "") + "\n"


def kind(field: Field[Any]) -> str:
    spelled = field.type if isinstance(field.type, str) else inspect.formatannotation(field.type)
    return re.sub(r"typing\.|mlx_transformer\.[\w.]*\.", "", spelled).replace("|", "\\|")


def default(field: Field[Any]) -> str:
    if field.default is not MISSING:
        return f"`{field.default!r}`"
    return "" if field.default_factory is MISSING else f"`{field.default_factory()!r}`"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
