"""Optional packages, and how to install them.

A module imports an optional package inside the function that uses the package,
after `need` has checked that it is installed.
"""

import importlib.util

from albert_tf.base.errors import InputError

# {module: the pip requirement that installs it}
SOURCES = {
    "ai_edge_litert": "albert-tf[litert]",
    "ai_edge_quantizer": "albert-tf[litert]",
    "apache_beam": "albert-tf[beam]",
    "espeakng_loader": "albert-tf[phonemes]",
    "gradio": "albert-tf[demo]",
    "jieba": "albert-tf[zh]",
    "matplotlib": "albert-tf[plots]",
    "nltk": "albert-tf[zh]",
    "onnx": "albert-tf[onnx]",
    "onnxruntime": "albert-tf[onnx]",
    "phonemizer": "albert-tf[phonemes]",
    "pyarrow": "albert-tf[data]",
    "scipy": "albert-tf[informed]",
    "sentencex": "albert-tf[sentences]",
    "sklearn": "albert-tf[informed]",
    # Some platforms have wheels for TensorFlow but not for this package.
    "tensorflow_text": "tensorflow-text",
    "tf2onnx": "albert-tf[onnx]",
    "torch": "albert-tf[convert]",
    "yaml": "albert-tf[convert]",
    "zstandard": "albert-tf[zstd]",
}


def is_installed(module: str) -> bool:
    """Return whether a module listed in `SOURCES` is installed."""
    return importlib.util.find_spec(module) is not None


def lacking(use: str, *modules: str) -> str:
    """Return a sentence that names missing modules, or "" if there are none.

    The sentence also contains the command that installs them.

    Args:
      use: the feature that needs the modules, as the subject of the sentence.
      *modules: keys of `SOURCES`.
    """
    missing = [module for module in modules if not is_installed(module)]
    if not missing:
        return ""
    sources = dict.fromkeys(SOURCES[module] for module in missing)
    install = " ".join(f"'{source}'" for source in sources)
    return f"{use} needs {' and '.join(missing)}: pip install {install}."


def need(use: str, *modules: str, **received: object) -> None:
    """Raise `InputError` unless modules listed in `SOURCES` are installed.

    Args:
      use: the feature that needs the modules, with names in backticks.
      *modules: keys of `SOURCES`.
      received: the user's values that require the modules.
    """
    if sentence := lacking(use, *modules):
        values = ", ".join(f"{k}={v}" for k, v in received.items())
        raise InputError(f"{sentence} Received: {values or 'none'}")
