"""Text that may be a stranger's, as a terminal or a log may have it: names come from pods, and a terminal would obey
them."""


def printable(line: str) -> str:
    """The line with escapes for what would not be seen as it is: control characters, and bytes that are no text."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def printable_lines(text: str) -> str:
    """The same of several lines, which stay lines."""
    return "\n".join(map(printable, text.split("\n")))
