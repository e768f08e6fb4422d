"""The one exception that a user's mistake raises."""


class InputError(ValueError):
    """A mistake in what the user gave: a flag, a file, a config, a record.

    The message is complete by itself: the rule with names in backticks, then
    `Received: name=value`, the legal choices, and file and line for data.
    Command-line programs print it as one line and exit with status 1.
    """
