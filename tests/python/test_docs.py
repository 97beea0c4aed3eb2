"""Examples in docstrings, in the README and on the pages of the site do what they say."""

import doctest
import re
from pathlib import Path

import pytest
import tilewise as tw

README = Path(__file__).parents[2] / "README.md"
OPERATIONS = ["add", "softmax", "log_softmax", "matmul", "softmax_backward", "log_softmax_backward"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_docstring_examples(name):
    torch = pytest.importorskip("torch")
    function = getattr(tw, name)
    test = doctest.DocTestParser().get_doctest(
        function.__doc__, {"tilewise": tw, "tw": tw, "torch": torch}, name, None, 0
    )
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    report = []
    result = runner.run(test, out=report.append)
    assert result.failed == 0, "".join(report)
    assert result.attempted > 0, "no example"


@pytest.mark.parametrize("name", OPERATIONS)
def test_docstrings_say_what_a_reader_needs(name):
    text = getattr(tw, name).__doc__
    for heading in ("Args:", "Returns:", "Raises:", "Example:"):
        assert heading in text


def test_signatures_are_readable():
    import inspect

    assert str(inspect.signature(tw.add)) == "(x, y, *, alpha=1, out=None)"
    assert str(inspect.signature(tw.softmax)) == "(x, dim=-1, *, dtype=None, out=None)"
    assert str(inspect.signature(tw.log_softmax)) == "(x, dim=-1, *, dtype=None, out=None)"
    assert str(inspect.signature(tw.matmul)) == (
        "(a, b, *, bias=None, gate=None, residual=None, activation=None, negative_slope=0.01, "
        "precision='ieee', out=None)"
    )


ROOT = README.parent
WITH_PYTHON = [p for p in [README, *ROOT.glob("docs/**/*.md")] if p.exists() and "```python" in p.read_text()]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_of_a_page_runs(page):
    torch = pytest.importorskip("torch")
    if "tilewise.latency" in page.read_text():
        pytest.importorskip("scipy")
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    # One reader, one session: later blocks see the names of earlier ones.
    names = {}
    for block in blocks:
        if not torch.cuda.is_available():
            # The same lines at a size that a CPU does at once.
            block = block.replace('"cuda"', '"cpu"')
            block = re.sub(r"\b\d{4,}\b", lambda number: str(int(number[0]) // 64), block)
        exec(compile(block, page.name, "exec"), names)
