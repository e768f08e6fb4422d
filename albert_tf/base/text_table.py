"""Tables of text with aligned columns."""


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Return aligned lines; the first column to the left, others right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
