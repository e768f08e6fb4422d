"""Handlers of Sphinx events, which generate and check the site's pages."""

import dataclasses
import importlib
import inspect
import pathlib
import re
import shutil

import keras
from docutils import nodes
from sphinx.errors import SphinxError

import albert_tf
from albert_tf.base.help_page import value_of
from albert_tf.base.program import Program

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10, where Sphinx installs tomli
    import tomli as tomllib

ROOT = pathlib.Path(__file__).parent.parent
GENERATED = ROOT / "docs" / "generated"
SCRIPTS = ("create_pretraining_data", "pretrain", "finetune")

# {package: the title of its public names in the reference}
TITLES = {
    "library": "Models that accept strings",
    "model": "The encoder",
    "conversion": "Tokenizers",
    "training": "Optimizers and hooks",
    "base": "Errors",
}
PROGRAMS = "Programs as functions"

# The methods of Keras objects that users call.
METHODS = """load compile fit evaluate predict classify encode call fill_mask
embed save export""".split()
WHOLE = ("Albert", "Classifier")  # documented with inherited methods


def program_modules() -> dict[str, str]:
    """Return {console command: module} for all programs."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    scripts = tomllib.loads(text)["project"]["scripts"]
    return {name: entry.removesuffix(":cli") for name, entry in scripts.items()}


def flag_entry(program: Program, field: dataclasses.Field) -> str:
    """Return the directive that documents a flag."""
    metadata = field.metadata
    choices = ", ".join(f"`{choice}`" for choice in metadata["choices"] or ())
    rules = {
        "One of": choices,
        "At least": metadata["minimum"],
        "At most": metadata["maximum"],
        "Default:": program.default_words(field),
        "Also": ", ".join(
            f"`--{alias}`"
            for alias, name in program.aliases.items()
            if name == field.name
        ),
    }
    sentences = [
        metadata["help"].replace("<", "&lt;"),
        "**Required.**" if program.required(field) else "",
        *(f"{k} {x}." for k, x in rules.items() if x not in (None, "")),
    ]
    title = f"--{field.name}{value_of(field)}"
    return f":::{{option}} {title}\n{' '.join(filter(None, sentences))}\n:::\n"


def flag_page(command: str, module_name: str) -> str:
    """Return the page of a program, with its docstring and all flags."""
    module = importlib.import_module(module_name)
    program = module.cli.__self__
    script = command.removeprefix("albert-").replace("-", "_")
    invocation = f"{script}.py" if script in SCRIPTS else f"-m {module_name}"
    lines = [
        f"# {command}\n",
        inspect.getdoc(module),
        f"\nIn a clone, the command is `python {invocation}`.\n",
        f":::{{program}} {command}\n:::\n",
    ]
    for title, fields in program.groups().items():
        lines += [f"## {title}\n", *(flag_entry(program, f) for f in fields)]
    return "\n".join(lines)


def program_entry(name: str, function) -> str:
    """Return the reference entry of a program, with a link to its flags."""
    command = f"albert-{name.replace('_', '-')}"
    summary, _, rest = inspect.getdoc(function).partition("\n\nArgs:")
    returned = rest.partition("Returns:\n")[2]
    lines = [
        f":::{{py:function}} albert_tf.{name}(**flags)\n{summary}\n",
        f"The flags are those of [{command}](flags/{command}.md).",
        f"Returns {' '.join(returned.split())}" if returned else "",
    ]
    return "\n".join(lines) + "\n:::\n"


KERAS = (keras.Operation, keras.optimizers.Optimizer)


def members_option(name: str, cls: type) -> str:
    """Return the option that lists the members of a class to document.

    For Keras objects, only `METHODS` are listed. Methods that all task models
    share are documented only with the first task model.
    """
    if not issubclass(cls, KERAS):
        return "   :members:\n"
    classes = cls.__mro__ if name in WHOLE else [cls]
    classes = [c for c in classes if c.__module__.startswith("albert_tf.")]
    shown = [m for m in METHODS if any(m in vars(c) for c in classes)]
    return f"   :members: {', '.join(shown)}\n" if shown else ""


def name_entry(name: str, value) -> str:
    """Return the directive that documents a public name."""
    if hasattr(value, "program"):
        return program_entry(name, value)
    is_class = inspect.isclass(value)
    kind = "class" if is_class else "function"
    members = members_option(name, value) if is_class else ""
    return f"```{{eval-rst}}\n.. auto{kind}:: albert_tf.{name}\n{members}```\n"


def signature_of_init(app, what, name, value, options, signature, returned):
    """Show the arguments of `__init__`, which Keras's `__new__` hides."""
    if what != "class" or signature != "(*args, **kwargs)":
        return None
    parameters = inspect.signature(value.__init__).parameters
    shown = [
        p.replace(annotation=inspect.Parameter.empty)
        for p in list(parameters.values())[1:]
    ]
    return str(inspect.Signature(shown)), returned


def reference_page() -> str:
    """Return the page of the public names, grouped by title."""
    entries: dict[str, list[str]] = {title: [] for title in TITLES.values()}
    entries[PROGRAMS] = []
    for name, module in sorted(albert_tf.PUBLIC.items()):
        value = getattr(albert_tf, name)
        is_program = hasattr(value, "program")
        title = PROGRAMS if is_program else TITLES[module.split(".")[1]]
        entries[title].append(name_entry(name, value))
    lines = ["# Public names\n", inspect.getdoc(albert_tf).partition("\n")[2]]
    for title, documented in entries.items():
        lines += [f"\n## {title}\n", *documented]
    return "\n".join(lines)


def write_generated_pages(app) -> None:
    """Write pages on flags and names; copy other pages and the notebooks."""
    shutil.rmtree(GENERATED, ignore_errors=True)
    (GENERATED / "flags").mkdir(parents=True)
    for command, module_name in program_modules().items():
        path = GENERATED / "flags" / f"{command}.md"
        path.write_text(flag_page(command, module_name), "utf-8")
    (GENERATED / "reference.md").write_text(reference_page(), "utf-8")
    for name in ("CHANGELOG", "CONTRIBUTING"):
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8")
        page = GENERATED / f"{name.lower()}.md"
        page.write_text(text.replace("](docs/", "](../"), "utf-8")
    shutil.copytree(ROOT / "examples", GENERATED / "notebooks")


def put_languages_side_by_side(app, doctree) -> None:
    """Show a command beside the Python code that directly follows it."""
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


def require_offline_pages(app, exception) -> None:
    """Fail if a page of the site loads anything from another site."""
    for path in sorted(pathlib.Path(app.outdir).rglob("*")):
        if not exception and path.suffix in (".html", ".css"):
            if loaded := LOADED.search(path.read_text(encoding="utf-8")):
                raise SphinxError(f"{path} loads {loaded[0]}")
