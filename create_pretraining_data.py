"""Make TFRecords for pretraining from text."""

from albert_tf import settings
from albert_tf.masking import MaskingConfig
from albert_tf.pretraining_data import build
from albert_tf.pretraining_data.pairs import PairsConfig
from albert_tf.pretraining_data.plan import BuildConfig
from albert_tf.pretraining_data.reading import ReadingConfig
from albert_tf.tokenization import TokenizerConfig

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


if __name__ == "__main__":
    cli()
