"""ALBERT, A Lite BERT, for TensorFlow 2 and Keras 3."""

import os

# TensorFlow reads these when it is first imported; a user's values win. On AMD
# processors oneDNN is off by default, and a training step a fifth slower.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

__version__ = "0.1.0"
