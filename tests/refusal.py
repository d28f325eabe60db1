"""What an error says."""

import re

import pytest


def refused(message, call, /, *args, kind=ValueError, **kwargs):
    """`call` raises such an error with this message, in which "..." is any text of one line."""
    with pytest.raises(kind) as caught:
        call(*args, **kwargs)
    text = str(caught.value)
    assert caught.type is kind
    assert re.fullmatch(".*".join(map(re.escape, message.split("..."))), text), text
    return text
