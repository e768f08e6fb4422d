"""The command that serves a page for trying an exported model.

The command imports the page only after checking that the required packages are
installed.
"""

import dataclasses
import socket

from albert_tf.base import program
from albert_tf.base.errors import InputError
from albert_tf.base.packages import need
from albert_tf.base.settings import Validated, setting


@dataclasses.dataclass(frozen=True)
class PlaygroundConfig(Validated):
    """The model, and the address of the page."""

    saved_model: str = setting(
        None, "SavedModel written by `albert_tf.export`.", required=True
    )
    host: str = setting(
        "127.0.0.1",
        "Address to listen on; any address other than the default may expose "
        "the page to other machines.",
    )
    port: int = setting(8000, "Port to listen on.", minimum=1, maximum=65535)


def check_port(host: str, port: int) -> None:
    """Raise an error unless the program can listen on an IPv4 address.

    Gradio does not accept IPv6 addresses.
    """
    try:
        socket.create_server((host, port)).close()
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0]
        raise InputError(
            "`host` must be an IPv4 address of this machine, and `port` must "
            "be free and accessible; change them, or stop the program that "
            f"uses the port ({reason}). "
            f"Received: host={host}, port={port}"
        ) from None


@program.command(PlaygroundConfig)
def playground(config: PlaygroundConfig) -> None:
    """Serve a page for trying an exported model."""
    options = {"saved_model": config.saved_model}
    need("The page", "gradio", "tensorflow_text", **options)
    check_port(config.host, config.port)
    with program.quiet_start():
        from albert_tf.serving.playground_model import ExportedModel
        from albert_tf.serving.playground_page import make_page, serve

    model = ExportedModel(config.saved_model)
    print(
        f"{', '.join(model.inputs)}\n"
        f"Open http://{config.host}:{config.port}/ in a browser; press Ctrl-C "
        "to stop",
        flush=True,
    )
    page = make_page(model)
    serve(page, config.host, config.port)


cli = playground.program.cli
