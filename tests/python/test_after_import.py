"""Hearing of another module's import, whatever else looks for that module."""

import copy
import importlib
import importlib.util
import itertools
import sys
import threading
from importlib.machinery import PathFinder

import pytest
from tilewise._imports import after_import

names = itertools.count()


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Makes a module of this code, and returns its name."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    made = []

    def make(code=""):
        name = f"tilewise_waits_for_{next(names)}"
        (tmp_path / f"{name}.py").write_text(code)
        importlib.invalidate_caches()
        made.append(name)
        return name

    yield make
    for name in made:
        sys.modules.pop(name, None)


def waiting_for(name):
    done = []
    after_import(name, lambda: done.append(hasattr(sys.modules[name], "at_its_end")))
    return done


def test_now_or_after_the_import(module):
    there = module("at_its_end = 1")
    importlib.import_module(there)
    assert waiting_for(there) == [True]
    coming = module("at_its_end = 1")
    done = waiting_for(coming)
    assert done == []
    importlib.import_module(coming)
    assert done == [True]
    importlib.reload(sys.modules[coming])
    assert done == [True]


def test_looking_for_a_module_is_not_importing_it(module):
    name = module("at_its_end = 1")
    done = waiting_for(name)
    for _ in range(2):
        spec = importlib.util.find_spec(name)
        assert spec.origin.endswith(f"{name}.py")
        assert spec.loader.get_filename(name) == spec.origin
        assert "at_its_end" in copy.copy(spec.loader).get_source(name)
    assert done == []
    importlib.import_module(name)
    assert done == [True]
    assert type(sys.modules[name].__loader__) is type(sys.modules[name].__spec__.loader)
    assert isinstance(sys.modules[name].__loader__, importlib.machinery.SourceFileLoader)


def test_a_load_that_fails_is_not_an_import(module):
    name = module("import sys\nif not hasattr(sys, __name__): raise ImportError('not yet')\nat_its_end = 1")
    done = waiting_for(name)
    for _ in range(2):
        with pytest.raises(ImportError, match="not yet"):
            importlib.import_module(name)
    assert done == []
    setattr(sys, name, True)
    importlib.import_module(name)
    delattr(sys, name)
    assert done == [True]


@pytest.mark.parametrize("first", ["looked for", "loaded by hand"])
def test_a_spec_that_is_used_later(module, first):
    name = module("at_its_end = 1")
    done = waiting_for(name)
    spec = importlib.util.find_spec(name)
    if first == "looked for":
        importlib.import_module(name)
        assert done == [True]
    else:
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
        assert done == [True]


class AsksAll:
    """As the hooks of tracers do: asks all finders again, but itself."""

    def __init__(self, wanted):
        self.wanted, self.asking = wanted, False

    def find_spec(self, name, path=None, target=None):
        if name != self.wanted or self.asking:
            return None
        self.asking = True
        try:
            return importlib.util.find_spec(name)
        finally:
            self.asking = False


class FindsItself(AsksAll):
    def find_spec(self, name, path=None, target=None):
        return PathFinder.find_spec(name, path, target) if name == self.wanted else None


@pytest.mark.parametrize("finder", [AsksAll, FindsItself])
@pytest.mark.parametrize("place", [0, 1])
def test_other_finders(module, finder, place):
    name, next_one = module("at_its_end = 1"), module()
    done = waiting_for(name)
    sys.meta_path.insert(place, finder(name))
    importlib.import_module(name)
    # Found without a question to ours: noticed by the next import at the latest.
    importlib.import_module(next_one)
    assert done == [True]


class OneLoader:
    """A loader that all modules share, as those of frozen applications are."""

    def __init__(self, *names):
        self.names, self.ran = names, []

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_loader(name, self) if name in self.names else None

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        self.ran.append(module.__name__)
        module.at_its_end = 1


def test_a_loader_of_several_modules(module):
    other, name = module(), module()
    loader = OneLoader(other, name)
    done = waiting_for(name)
    sys.meta_path.append(loader)
    sys.meta_path.remove(PathFinder)
    importlib.util.find_spec(name)
    importlib.import_module(other)
    assert done == []
    importlib.import_module(name)
    assert done == [True]
    assert loader.ran == [other, name]


def test_what_fails_afterwards_fails_no_import(module):
    name = module("at_its_end = 1")

    def fail():
        raise ValueError("of no concern to others")

    after_import(name, fail)
    with pytest.warns(RuntimeWarning, match=f"takes no part in {name}: ValueError"):
        importlib.import_module(name)
    assert sys.modules[name].at_its_end
    importlib.import_module(module())


@pytest.mark.parametrize("waits", ["before", "during"])
def test_many_threads_import_it(module, waits):
    name = module("import threading, time\nthreading.importing.set()\ntime.sleep(0.2)\nat_its_end = 1\n")
    threading.importing = threading.Event()
    done, seen = [], []
    if waits == "before":
        done = waiting_for(name)

    def work():
        importlib.import_module(name)
        seen.append(list(done))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    if waits == "during":
        assert threading.importing.wait(60)
        done = waiting_for(name)
    for thread in threads:
        thread.join()
    assert done == [True]
    if waits == "before":
        assert seen == [[True]] * 8


def test_a_module_that_is_waited_for_while_it_is_imported(module):
    name = module(
        "import sys\n"
        "from tilewise._imports import after_import\n"
        "sys.tilewise_done = []\n"
        "after_import(__name__, lambda: sys.tilewise_done.append(at_its_end))\n"
        "at_its_end = 1\n"
    )
    importlib.import_module(name)
    importlib.import_module(module())
    assert sys.tilewise_done == [1]
