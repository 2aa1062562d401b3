"""Scripts of experiments, and what they have stored: SCRIPT is the one of a test module."""

import json

import pytest

from tests.documentation.test_experiments import loaded


@pytest.fixture(scope="module")
def experiments(request):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(request.module.SCRIPT.parent))  # scripts import each other
        yield from loaded(request.module.SCRIPT)


@pytest.fixture(scope="module")
def stored(request):
    return json.loads(request.module.SCRIPT.with_suffix(".json").read_text())
