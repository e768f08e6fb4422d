"""ALBERT, A Lite BERT, for TensorFlow 2 and Keras 3.

The public API consists of the names in `PUBLIC`; everything else may change.
Names are imported on first use, so `import albert_tf` is fast, does not need
TensorFlow and prints nothing.
"""

import importlib
import sys
import types

from albert_tf.base import keras_names
from albert_tf.base.errors import near

__version__ = "0.1.0"

# {public name: module that defines it}
PUBLIC = {
    "AdamW": "albert_tf.training.keras_optimizers",
    "Albert": "albert_tf.library.pretrained_model",
    "AlbertConfig": "albert_tf.model.config",
    "AlbertForPretraining": "albert_tf.model.albert",
    "AlbertModel": "albert_tf.model.albert",
    "Classifier": "albert_tf.library.models",
    "Embedder": "albert_tf.library.models",
    "Hook": "albert_tf.training.run",
    "InputError": "albert_tf.base.errors",
    "Lamb": "albert_tf.training.keras_optimizers",
    "MultipleChoice": "albert_tf.library.models",
    "PairClassifier": "albert_tf.library.models",
    "Preprocessor": "albert_tf.library.preprocessor",
    "QuestionAnswerer": "albert_tf.library.models",
    "Regressor": "albert_tf.library.models",
    "Tagger": "albert_tf.library.models",
    "WarmupDecay": "albert_tf.training.keras_optimizers",
    "convert_checkpoint": "albert_tf.conversion.convert_checkpoint",
    "create_pretraining_data": "albert_tf.data.builder.build",
    "embed": "albert_tf.library.embed",
    "export": "albert_tf.serving.export",
    "finetune": "albert_tf.finetuning.finetune",
    "load": "albert_tf.library.pretrained_model",
    "load_tokenizer": "albert_tf.conversion.tokenizer_loading",
    "minimal_pairs": "albert_tf.tasks.minimal_pairs",
    "phonemize": "albert_tf.data.phonemize",
    "pretrain": "albert_tf.training.pretraining.pretrain",
    "search": "albert_tf.library.vectors",
    "similarity": "albert_tf.library.vectors",
    "train_tokenizer": "albert_tf.data.train_tokenizer",
}

__all__ = sorted(PUBLIC)

# {end of a name in another library: public name to use instead}
FOREIGN = {
    "AutoModel": "load",
    "AutoTokenizer": "load_tokenizer",
    "Backbone": "load",
    "ForMultipleChoice": "MultipleChoice",
    "MaskedLM": "load",
    "Preprocessor": "Preprocessor",
    "QuestionAnswering": "QuestionAnswerer",
    "SentenceTransformer": "Embedder",
    "SequenceClassification": "Classifier",
    "TokenClassification": "Tagger",
    "from_pretrained": "load",
    "from_preset": "load",
}


class _Package(types.ModuleType):
    """A module class whose public names are not replaced by submodules.

    In an ordinary module, importing the submodule `albert_tf.export` would hide
    the function `albert_tf.export`.
    """

    def __setattr__(self, name, value):
        if name not in PUBLIC or not isinstance(value, types.ModuleType):
            super().__setattr__(name, value)

    def __reduce__(self):
        """Pickle the module by name, as cloudpickle pickles other modules."""
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str):
    """Import a public name on first use."""
    if name not in PUBLIC:
        ours = [FOREIGN[end] for end in FOREIGN if name.endswith(end)]
        rest = f"; use `{ours[0]}`" if ours else ""
        if not (rest or name.startswith("_")):
            rest = near(name, PUBLIC).rstrip(".")
        message = f"module {__name__!r} has no attribute {name!r}{rest}"
        raise AttributeError(message)
    from albert_tf.base import program

    with program.quiet_start():
        value = getattr(importlib.import_module(PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})


keras_names.offer((name for name in PUBLIC if name[0].isupper()), __getattr__)
