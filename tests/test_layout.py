"""The rules of the project's layout, checked on the source alone."""

import ast
import graphlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "albert_tf"
SCRIPTS = ("create_pretraining_data", "pretrain", "finetune")
MAX_LINES = 350

# From the ground up. A module imports from its own rank or from lower ones;
# the scripts stand above all. A package's name stands for all its modules.
RANKS = (
    """config errors files flops health masking_spans metrics progress
    remote_files settings stopping text.character_graph text.normalization
    text.sentencepiece_rules text.wordpiece tokenization tpu.chips
    tpu.module""",
    """checkpoint_files checkpoints distribution dropout encoder_loop
    evaluation fused graph_masking head_pruning history learning_rate
    masking model optimization part records report_chart text.graph
    text.offset_graph tpu.compiler weight_files""",
    """finetuning.conversion finetuning.recipes finetuning.soft_targets
    finetuning.task_mixture finetuning.trainer heads loop objectives
    pretraining pretraining_data tasks.answer_files tasks.answer_metrics
    tasks.answers tasks.base tasks.batches tasks.choice_files tasks.config
    tasks.conll tasks.features tasks.labels tasks.layouts
    tasks.question_features
    tasks.scoring tasks.splits tasks.squad_files tasks.submissions
    tasks.tables tasks.windows tpu.step training warm_start""",
    """tasks.classification tasks.multiple_choice tasks.question_answering
    tasks.sentences tasks.token_classification""",
    """demo_page demo_text finetuning.class_weights finetuning.directory
    finetuning.distillation finetuning.ensemble finetuning.job
    finetuning.multitask finetuning.run finetuning.seeds
    serving tasks.chinese tasks.custom tasks.glue tasks.ner tasks.race
    tasks.registry tasks.squad""",
    """convert_checkpoint demo demo_client describe embed export
    inspect_records litert_runner litert_tasks report shrink tpu_check
    train_tokenizer""",
    "demo_pipeline",
)
RANK_OF = {name: i for i, row in enumerate(RANKS) for name in row.split()}


def rank(module: str) -> int | None:
    """Return the rank of a module named without `albert_tf.`."""
    if module in RANK_OF:
        return RANK_OF[module]
    return RANK_OF.get(module.split(".")[0])


def module_files() -> dict[str, Path]:
    """Return the library's modules; packages' `__init__` are not modules."""
    return {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name != "__init__.py"
    }


MODULES = module_files()
TREES = {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def imported(tree: ast.Module) -> set[str]:
    """Return the full names that a file imports, functions' inside too."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def own_imports(tree: ast.Module) -> set[str]:
    """Return the modules of `albert_tf` that a file imports."""
    names = {n.removeprefix("albert_tf.") for n in imported(tree)}
    return names & MODULES.keys()


def test_every_module_has_a_rank():
    """Every module of the library stands in the table of ranks."""
    assert [name for name in MODULES if rank(name) is None] == []


def test_imports_point_down():
    """No module imports one of a higher rank."""
    upward = [
        f"{name} imports {other}"
        for name, tree in TREES.items()
        for other in sorted(own_imports(tree))
        if (rank(other) or 0) > (rank(name) or 0)
    ]
    assert upward == []


def test_imports_make_no_circle():
    """The imports of the library can be put in an order."""
    graph = {name: own_imports(tree) for name, tree in TREES.items()}
    assert len(list(graphlib.TopologicalSorter(graph).static_order())) == len(
        MODULES
    )


def test_the_library_does_not_import_scripts():
    """The command-line scripts are on top: nothing imports them."""
    users = [n for n, t in TREES.items() if imported(t) & set(SCRIPTS)]
    assert users == []


def test_only_settings_and_the_scripts_know_absl():
    """Library modules read no flags: absl is imported in `settings` alone."""
    users = [
        name
        for name, tree in TREES.items()
        if any(other.split(".")[0] == "absl" for other in imported(tree))
    ]
    assert users == ["settings"]


def test_modules_are_short():
    """No module or script is over 350 lines."""
    paths = [*MODULES.values(), *ROOT.glob("*.py")]
    lengths = {p.name: len(p.read_text().splitlines()) for p in paths}
    assert {k: n for k, n in lengths.items() if n > MAX_LINES} == {}


def test_the_library_does_not_assert():
    """`assert` vanishes under `python -O`, so only tests use it."""
    users = [
        name
        for name, tree in TREES.items()
        if any(isinstance(node, ast.Assert) for node in ast.walk(tree))
    ]
    assert users == []


def test_every_test_states_its_property():
    """Every test function has a docstring."""
    silent = [
        f"{path.name}: {node.name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]
    assert silent == []


def console_scripts() -> dict[str, str]:
    """Return the table of `setup.py`, which cannot be imported."""
    for node in ast.parse((ROOT / "setup.py").read_text()).body:
        if isinstance(node, ast.Assign):
            if node.targets[0].id == "CONSOLE_SCRIPTS":
                return ast.literal_eval(node.value)
    raise AssertionError("setup.py has no CONSOLE_SCRIPTS")


@pytest.mark.parametrize(("command", "target"), console_scripts().items())
def test_console_scripts_exist(command, target):
    """Each installed command names a function of a module that is there."""
    module, function = target.split(":")
    path = ROOT / (module.replace(".", "/") + ".py")
    assert path.exists(), command
    defined = [getattr(n, "name", "") for n in ast.parse(path.read_text()).body]
    assert function in defined
