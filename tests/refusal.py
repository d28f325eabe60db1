"""What an error says."""

import re

import pytest


def refused(message, call, /, *args, kind=ValueError, **kwargs):
    """`call` raises such an error with this message, in which "..." is any text of one line."""
    with pytest.raises(kind) as caught:
        call(*args, **kwargs)
    text = str(caught.value)
    assert caught.type is kind
    matches(message, text)
    return text


def ended(code, capsys, main, *argv):
    """The command ends with this exit code; what it printed, `out` and `err`."""
    capsys.readouterr()
    assert main([*map(str, argv)]) == code, capsys.readouterr().err
    return capsys.readouterr()


def matches(message, text):
    """The message, in which "..." is any text of one line, is the whole text."""
    assert re.fullmatch(".*".join(map(re.escape, message.split("..."))), text), text
