"""Try an exported model on a local page: `python -m albert_tf.playground`.

    python -m albert_tf.playground --saved_model=DIR

The page offers what the SavedModel's signatures can do, and loads nothing
from anywhere else. It needs `pip install 'albert-tf[demo]'`.
"""

import dataclasses
import importlib.util

from albert_tf.base import program
from albert_tf.base.errors import require
from albert_tf.base.settings import Checked, setting


@dataclasses.dataclass(frozen=True)
class PlaygroundConfig(Checked):
    """Which model is shown where."""

    saved_model: str = setting(
        None, "SavedModel that `albert_tf.export` wrote.", required=True
    )
    host: str = setting(
        "127.0.0.1",
        "Address to listen on; anything but the default shows the page to "
        "other machines.",
    )
    port: int = setting(8000, "Port.", minimum=1, maximum=65535)


@program.command(PlaygroundConfig)
def playground(config: PlaygroundConfig) -> None:
    """Serve a page that shows what an exported model can do."""
    there = importlib.util.find_spec("gradio")
    require(there, "The page needs `pip install 'albert-tf[demo]'`.")
    with program.quiet_start():
        from albert_tf.serving import playground_page
        from albert_tf.serving.playground_model import ExportedModel

    model = ExportedModel(config.saved_model)
    print(
        f"{', '.join(model.inputs)}\n"
        f"Open http://{config.host}:{config.port}/ and stop with Ctrl-C",
        flush=True,
    )
    page = playground_page.make_page(model)
    playground_page.serve(page, config.host, config.port)


cli = playground.program.cli


if __name__ == "__main__":
    cli()
