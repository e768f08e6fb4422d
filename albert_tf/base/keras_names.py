"""Placeholders that let Keras find our classes before they are imported.

`keras.models.load_model` looks up classes in a registry. Our classes are
registered when their modules are imported, but `import albert_tf` does not
import these modules. Instead, it registers a placeholder for each class, which
imports the class when Keras needs it.
"""

import importlib.abc
import importlib.util
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

PACKAGE = "albert_tf"


class Deferred:
    """A placeholder that imports a class when a saved model needs it."""

    def __init__(self, name: str, find: Callable[[str], type]):
        self.name, self.find = name, find

    def from_config(self, config: dict) -> Any:
        """Import the class and create an instance from a config."""
        return self.find(self.name).from_config(config)


class AfterKeras(importlib.abc.MetaPathFinder):
    """An import hook that calls a function once Keras has been imported.

    Args:
      then: a function that is called with the module `keras`.
    """

    def __init__(self, then: Callable[[types.ModuleType], None]):
        self.then = then

    def find_spec(self, name, path=None, target=None):
        if name != "keras":
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:  # other code may search for Keras without importing it
            sys.meta_path.insert(0, self)
        if spec and spec.loader:
            execute = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                execute(module)
                sys.meta_path.remove(self)
                self.then(module)

            spec.loader.exec_module = exec_module
        return spec


def offer(names: Iterable[str], find: Callable[[str], Any]) -> None:
    """Register placeholders for classes as soon as Keras is imported.

    Args:
      names: names of the classes.
      find: a function that imports and returns the class with a given name.
    """

    def register(keras: types.ModuleType) -> None:
        registry = keras.saving.get_custom_objects()
        for name in names:
            registry.setdefault(f"{PACKAGE}>{name}", Deferred(name, find))

    if keras := sys.modules.get("keras"):  # None if Keras is blocked
        register(keras)
    else:
        sys.meta_path.insert(0, AfterKeras(register))
