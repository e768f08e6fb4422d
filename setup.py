"""Package metadata; the version is that of `albert_tf/__init__.py`."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent

CONSOLE_SCRIPTS = {
    "albert-create-pretraining-data": "create_pretraining_data:cli",
    "albert-pretrain": "pretrain:cli",
    "albert-finetune": "finetune:cli",
    "albert-train-tokenizer": "albert_tf.train_tokenizer:cli",
    "albert-embed": "albert_tf.embed:cli",
    "albert-export": "albert_tf.export:cli",
    "albert-convert-checkpoint": "albert_tf.convert_checkpoint:cli",
    "albert-describe": "albert_tf.describe:cli",
    "albert-inspect-records": "albert_tf.inspect_records:cli",
    "albert-report": "albert_tf.report:cli",
    "albert-tpu-check": "albert_tf.tpu_check:cli",
    "albert-playground": "albert_tf.playground:cli",
    "albert-litert": "albert_tf.litert_runner:cli",
    "albert-shrink": "albert_tf.shrink:cli",
}

# tensorflow-text asks for the TensorFlow of its own minor version, so that
# pip keeps the two together. sentencepiece 0.2.2 breaks ties differently
# from the library inside tensorflow-text: its ids would not be the graph's.
REQUIREMENTS = [
    "tensorflow>=2.20,<2.22",
    "tensorflow-text>=2.20,<2.22",
    "sentencepiece>=0.2.0,<0.2.2",
    "absl-py",
    "google-crc32c",
    "jinja2",
    "matplotlib",
    "numpy",
    "protobuf",
    "safetensors",
    "scikit-learn",
    "scipy",
    "seqeval",
    "tensorboard",
    "tqdm",
]

EXTRAS = {
    "test": ["pytest>=8", "pytest-xdist>=3", "ruff>=0.17,<0.18"],
    "beam": ["apache-beam"],
    "demo": ["gradio>=6,<7", "sentencex>=1"],
    "litert": ["ai-edge-litert"],
    "convert": ["torch", "transformers"],
    "onnx": ["onnx", "onnxruntime", "tf2onnx"],
    "sentences": ["sentencex>=1"],
    "tpu-check": ["jax[tpu]==0.10.2"],
    "zh": ["jieba", "nltk"],
}
# The small ones, so that their tests run.
for name in ("demo", "litert", "onnx", "sentences", "zh"):
    EXTRAS["test"] += EXTRAS[name]


def version() -> str:
    """Return the version without importing the package."""
    source = (ROOT / "albert_tf" / "__init__.py").read_text("utf-8")
    return re.search(r'^__version__ = "([^"]+)"$', source, re.M)[1]


setup(
    name="albert-tf",
    version=version(),
    description="ALBERT for TensorFlow 2: pretrain, fine-tune, export",
    long_description=(ROOT / "README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10,<3.14",
    packages=[*find_packages(include=["albert_tf*"]), "albert_tf.configs"],
    package_dir={"albert_tf.configs": "configs"},
    package_data={
        "albert_tf.configs": ["**/*.json", "**/*.flags"],
        "albert_tf.training": ["*.html"],
    },
    py_modules=["create_pretraining_data", "pretrain", "finetune"],
    install_requires=REQUIREMENTS,
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": [f"{k} = {v}" for k, v in CONSOLE_SCRIPTS.items()]
    },
    classifiers=[
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
