"""The first calls of a process from several threads: none sees a part of tilewise.torch, or of torch."""

import pytest
from support import fresh

pytest.importorskip("torch")

# Each needs another part of tilewise.torch, which is imported slowly. `first` begins; the others come while
# the package is half made.
CALLS = """
    import importlib.machinery, sys, threading, time
    import torch
    import tilewise as tw

    begun = threading.Event()

    class Slowly:
        def find_spec(self, name, path=None, target=None):
            if not name.startswith("tilewise.torch"):
                return None
            spec = importlib.machinery.PathFinder.find_spec(name, path, target)
            execute = spec.loader.exec_module

            def slowly(module):
                begun.set()
                time.sleep(0.03)
                execute(module)

            spec.loader.exec_module = slowly
            return spec

    x = torch.randn(3, 3)
    half = torch.autocast("cpu", torch.bfloat16)

    class Named(torch.Tensor):
        pass

    def differentiated(call):
        w = x.clone().requires_grad_()
        call(w).sum().backward()
        return w.grad

    def autocast():
        with half:
            return tw.matmul(x, x)

    def by_name():
        import tilewise.torch
        return tilewise.torch.Softmax()(x)

    def operator():
        import tilewise.torch
        return torch.ops.tilewise.softmax(x)

    calls = {
        "gradient of a sum": lambda: differentiated(lambda w: tw.add(w, w)),
        "gradient of softmax": lambda: differentiated(tw.softmax),
        "gradient of a product": lambda: differentiated(lambda w: tw.matmul(w, w, activation="gelu")),
        "vmap": lambda: torch.vmap(tw.softmax)(x),
        "autocast": autocast,
        "subclass": lambda: tw.log_softmax(x.as_subclass(Named)).as_subclass(torch.Tensor),
        "meta": lambda: tw.softmax(x.to("meta")).shape,
        "import": by_name,
        "operator": operator,
    }
    results, errors = {}, {}

    def run(name):
        if name != first:
            begun.wait(60)
        try:
            results[name] = calls[name]()
        except BaseException as error:
            errors[name] = error

    sys.meta_path.insert(0, Slowly())
    threads = [threading.Thread(target=run, args=(name,)) for name in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "a deadlock"
    assert not errors, errors
    for name, result in results.items():
        again = calls[name]()
        assert torch.equal(result, again) if isinstance(again, torch.Tensor) else result == again, name
"""


@pytest.mark.parametrize("first", ["gradient of softmax", "gradient of a product", "vmap", "import"])
def test_first_calls_from_many_threads(first):
    fresh.run_after_torch(f"first = {first!r}\n" + "\n".join(line[4:] for line in CALLS.splitlines()))


def test_first_calls_while_dynamo_is_imported():
    # Its import ends with ours.
    fresh.run_after_torch(
        """
        import threading
        import torch
        import tilewise as tw

        x = torch.randn(3, 3)
        start = threading.Barrier(3)
        results = []

        def compiled():
            f = torch.compile(tw.softmax, fullgraph=True, backend="eager")
            results.append(f(x))

        def differentiated():
            results.append(tw.softmax(x.clone().requires_grad_()).detach())

        def batched():
            results.append(torch.vmap(tw.softmax)(x))

        def run(call):
            start.wait()
            call()

        threads = [threading.Thread(target=run, args=(c,)) for c in (compiled, differentiated, batched)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(results) == 3
        assert all(torch.allclose(r, torch.softmax(x, -1)) for r in results)
        """
    )


@pytest.mark.parametrize("interrupted_at", [29, 30, 31, 60])
def test_after_an_interrupted_first_call_the_next_one_works(interrupted_at):
    fresh.run_after_torch(
        f"""
        import torch
        import tilewise as tw

        define, left = torch.library.Library.impl, {interrupted_at}

        def interrupted(*args, **kwargs):
            global left
            left -= args[0].ns == "tilewise"
            if left == 0:
                left = -1
                raise KeyboardInterrupt
            return define(*args, **kwargs)

        torch.library.Library.impl = interrupted
        x = torch.randn(3, 3)
        try:
            torch.vmap(tw.softmax)(x)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("not interrupted")
        assert torch.allclose(torch.vmap(tw.softmax)(x), torch.softmax(x, -1))
        w = x.requires_grad_()
        tw.matmul(w, w, activation="gelu").sum().backward()
        """
    )


def test_numpy_calls_while_torch_is_imported():
    pytest.importorskip("numpy")
    fresh.run("""
        import importlib, sys, threading
        import numpy as np
        import tilewise as tw

        class AtEachModule:
            def __init__(self):
                self.errors, self.calls = [], 0

            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] == "torch":
                    thread = threading.Thread(target=self.call)
                    thread.start()
                    thread.join(5)
                    assert not thread.is_alive(), f"a call waits for {name}"

            def call(self):
                self.calls += 1
                # A new type: what is known of a type is not asked again.
                x = np.ones(3).view(type("Array", (np.ndarray,), {}))
                try:
                    assert (tw.add(x, 1) == 2).all()
                except BaseException as error:
                    self.errors.append(error)

        sys.meta_path.insert(0, hook := AtEachModule())
        import torch
        assert not hook.errors, hook.errors[0]
        assert hook.calls > 100
        assert torch.equal(tw.add(torch.ones(3), 1), torch.full((3,), 2.0))
    """)


def test_modes_see_the_call_and_nothing_else():
    printed = fresh.run_after_torch("""
        import torch
        import tilewise as tw
        import tilewise.torch
        from torch.overrides import TorchFunctionMode
        from torch.utils._python_dispatch import TorchDispatchMode

        seen = []

        class Functions(TorchFunctionMode):
            def __torch_function__(self, function, types, args=(), kwargs=None):
                seen.append(function.__name__)
                return function(*args, **(kwargs or {}))

        class Dispatches(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                seen.append(str(function))
                return function(*args, **(kwargs or {}))

        x = torch.ones(3)
        with Functions(), Dispatches():
            tw.add(x, x)
        print(*seen)
    """)
    assert printed.split() == ["add", "tilewise.add.Tensor"]


def test_the_first_call_of_all_may_be_under_a_mode_of_fakes():
    fresh.run_after_torch("""
        import torch
        import tilewise as tw
        from torch._subclasses.fake_tensor import FakeTensorMode

        with FakeTensorMode():
            assert tw.softmax(torch.empty(3, 4)).shape == (3, 4)
        x = torch.randn(3, 4)
        assert torch.equal(tw.add(torch._neg_view(x), 0), -x)
    """)
