"""What the site has that its pages do not: the reference, made of the code."""

import dataclasses
import importlib
import inspect
import pathlib
import re
import shutil
from unittest import mock

from docutils import nodes
from sphinx.errors import SphinxError

import albert_tf
from albert_tf.base import settings

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where Sphinx brings it
    import tomli as tomllib

ROOT = pathlib.Path(__file__).parent.parent
GENERATED = ROOT / "docs" / "generated"
SCRIPTS = ("create_pretraining_data", "pretrain", "finetune")

# Titles of the reference by the room in which a public name is defined, ""
# for a program.
ROOMS = {
    "library": "Models that take strings",
    "model": "The encoder",
    "text": "Tokenizers",
    "training": "Training",
    "": "Programs as functions",
    "base": "Errors",
}


def program_modules() -> dict[str, str]:
    """Return {console command: module} of every program."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    scripts = tomllib.loads(text)["project"]["scripts"]
    return {name: place.removesuffix(":cli") for name, place in scripts.items()}


def settings_of(module) -> list[type]:
    """Define a program's flags as it does itself; return its settings."""
    for name in list(settings.FLAGS):
        delattr(settings.FLAGS, name)
    with (
        mock.patch.object(settings, "run"),
        mock.patch.object(
            settings, "define_flags", wraps=settings.define_flags
        ) as define,
    ):
        module.cli()
    return [cls for call in define.call_args_list for cls in call.args]


def flag_entry(field: dataclasses.Field) -> str:
    """Return what a page says of a flag, which has the program's default."""
    flag, metadata = settings.FLAGS[field.name], field.metadata
    default, low, high = flag.default, metadata["minimum"], metadata["maximum"]
    default = ",".join(default) if isinstance(default, list) else default
    rules = [
        f"At least {low}." if low is not None else "",
        f"At most {high}." if high is not None else "",
        "**Required.**" if flag.validators else "",
        f"Default: `{default}`." if default not in (None, "") else "",
    ]
    value = (
        "" if flag.boolean else f"={re.split(r'[^a-z]', flag.flag_type())[0]}"
    )
    said = " ".join([flag.help.replace("<", "&lt;"), *filter(None, rules)])
    return f":::{{option}} --{field.name}{value}\n{said}\n:::\n"


def flag_page(command: str, place: str) -> str:
    """Return the page of a program: its docstring, and every flag."""
    module = importlib.import_module(place)
    script = command.removeprefix("albert-").replace("-", "_")
    typed = f"{script}.py" if script in SCRIPTS else f"-m {place}"
    lines = [
        f"# {command}\n",
        inspect.getdoc(module),
        f"\nIn a clone, the command is `python {typed}`.\n",
        f":::{{program}} {command}\n:::\n",
    ]
    for cls in settings_of(module):
        lines += [f"## {inspect.getdoc(cls).splitlines()[0].rstrip('.')}\n"]
        lines += [flag_entry(field) for field in dataclasses.fields(cls)]
    return "\n".join(lines)


def python_page() -> str:
    """Return the page of the public names, by the room that defines them."""
    lines = ["# Public names\n", inspect.getdoc(albert_tf).partition("\n")[2]]
    rooms = {
        name: module.removeprefix("albert_tf.").rpartition(".")[0].split(".")[0]
        for name, module in albert_tf.PUBLIC.items()
    }
    for room, title in ROOMS.items():
        lines.append(f"\n## {title}\n")
        for name in sorted(n for n in rooms if rooms[n] == room):
            lines.append(documented(name))
    return "\n".join(lines)


def documented(name: str) -> str:
    """Return the directive that documents a public name."""
    kind = "class" if inspect.isclass(getattr(albert_tf, name)) else "function"
    members = "   :members:\n" if kind == "class" else ""
    return f"```{{eval-rst}}\n.. auto{kind}:: albert_tf.{name}\n{members}```\n"


def write_generated_pages(app) -> None:
    """Write the flags of every program and the public names; copy notebooks."""
    shutil.rmtree(GENERATED, ignore_errors=True)
    (GENERATED / "flags").mkdir(parents=True)
    for command, place in program_modules().items():
        path = GENERATED / "flags" / f"{command}.md"
        path.write_text(flag_page(command, place), "utf-8")
    (GENERATED / "reference.md").write_text(python_page(), "utf-8")
    for name in ("CHANGELOG", "CONTRIBUTING"):
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
        page = GENERATED / f"{name.lower()}.md"
        page.write_text(text.replace("](docs/", "](../"), "utf-8")
    for notebook in sorted((ROOT / "examples").glob("*.ipynb")):
        shutil.copy(notebook, GENERATED)


def put_languages_side_by_side(app, doctree) -> None:
    """Put a command beside the Python that follows it at once."""
    for block in list(doctree.findall(nodes.literal_block)):
        after = block.next_node(descend=False, siblings=True)
        if (
            block.get("language") == "sh"
            and isinstance(after, nodes.literal_block)
            and after.get("language") == "python"
        ):
            pair = nodes.container(classes=["side-by-side"])
            block.replace_self(pair)
            after.parent.remove(after)
            pair += [block, after]


LOADED = re.compile(
    r"<(?:script|img|iframe|source)\b[^>]*\bsrc=[\"'](?:https?:)?//[^>]*"
    r"|<link\b(?=[^>]*\brel=[\"'](?:stylesheet|preload|icon))"
    r"[^>]*\bhref=[\"'](?:https?:)?//[^>]*"
    r"|@import\s+(?:url\()?[\"']?(?:https?:)?//[^;]*"
    r"|url\([\"']?(?:https?:)?//[^)]*"
)


def refuse_addresses_to_load_from(app, exception) -> None:
    """Fail if a page of the site loads anything from elsewhere."""
    for path in sorted(pathlib.Path(app.outdir).rglob("*")):
        if not exception and path.suffix in (".html", ".css"):
            if loaded := LOADED.search(path.read_text(encoding="utf-8")):
                raise SphinxError(f"{path} loads {loaded[0]}")
