"""Programs of rounds are tiny and many: compiling them is all that these tests take."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def tiny_programs(quickly_compiled):
    yield
