"""What `pyproject.toml` cannot say: that `configs/` is a part of the package.

Apache Beam's `--setup_file` wants this file too.
"""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["albert_tf*"]), "albert_tf.configs"],
    package_dir={"albert_tf.configs": "configs"},
)
