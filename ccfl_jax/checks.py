"""What messages of several rooms have in common."""


def one_line(text: str, most: int = 300) -> str:
    """A text that may quote a file, line breaks and all, as one line of so many characters."""
    return text.encode("unicode_escape").decode()[:most]
