"""Try an exported model on a local page: `python -m albert_tf.playground`.

    python -m albert_tf.playground --saved_model=DIR

The page offers the functions of the SavedModel's signatures and loads nothing
from other servers. It needs `pip install 'albert-tf[demo]'`.
"""

import dataclasses
import importlib.util

from albert_tf.base import program
from albert_tf.base.errors import require
from albert_tf.base.settings import Checked, setting


@dataclasses.dataclass(frozen=True)
class PlaygroundConfig(Checked):
    """The model, and the address of the page."""

    saved_model: str = setting(
        None, "SavedModel written by `albert_tf.export`.", required=True
    )
    host: str = setting(
        "127.0.0.1",
        "Address to listen on; any other than the default may expose the page "
        "to other machines.",
    )
    port: int = setting(8000, "Port to listen on.", minimum=1, maximum=65535)


@program.command(PlaygroundConfig)
def playground(config: PlaygroundConfig) -> None:
    """Serve a page for trying an exported model."""
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
