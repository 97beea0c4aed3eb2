"""Type checkers find the package's types. (That the compiled module's stub agrees, make lint says.)"""

import importlib.util


def test_the_package_is_typed():
    import tilewise

    package = importlib.util.find_spec("tilewise").submodule_search_locations[0]
    for name in ("py.typed", "_core.pyi", "__init__.py"):
        with open(f"{package}/{name}") as file:
            assert file.readable()
    assert set(tilewise.__all__) >= {"add", "softmax", "log_softmax", "matmul"}
