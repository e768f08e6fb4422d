"""Make TFRecords for pretraining from text."""

from albert_tf.base import settings
from albert_tf.data.builder import build
from albert_tf.data.builder.build_config import BuildConfig
from albert_tf.data.builder.pairs import PairsConfig
from albert_tf.data.builder.text_files import ReadingConfig
from albert_tf.data.masking import MaskingConfig
from albert_tf.text.tokenizers import TokenizerConfig

CONFIGS = (
    BuildConfig,
    TokenizerConfig,
    PairsConfig,
    MaskingConfig,
    ReadingConfig,
)


def main() -> None:
    """Build the settings from the flags and make the records."""
    configs = [settings.from_flags(cls) for cls in CONFIGS]
    metadata = build.run(*configs)
    _, _, pairs, masking, _ = configs
    print(build.summary(metadata, pairs, masking))


def cli() -> None:
    """Run as a console script."""
    settings.define_flags(*CONFIGS)
    settings.run(main)
