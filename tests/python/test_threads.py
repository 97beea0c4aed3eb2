"""Many threads at once: right results, right errors, no deadlock."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import tilewise as tw
import torch
from support import fresh

THREADS = 8


def workload(device, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(50, 300, generator=generator).to(device)
    return [
        lambda: tw.add(x, x, alpha=seed),
        lambda: tw.softmax(x),
        lambda: tw.log_softmax(x, 0),
        lambda: tw.matmul(x, x.mT, activation="gelu"),
        lambda: tw.matmul(x.half(), x.half().mT),
    ]


def test_threads_with_their_own_tensors(device):
    works = [workload(device, seed) for seed in range(THREADS)]
    expected = [[call() for call in calls] for calls in works]
    start = threading.Barrier(THREADS)

    def work(index):
        start.wait()
        for _ in range(30):
            for call, right in zip(works[index], expected[index], strict=True):
                assert torch.equal(call(), right)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))


def test_threads_that_share_inputs(device):
    calls = workload(device, 5)
    expected = [call() for call in calls]

    def work(_):
        return [torch.equal(call(), right) for call, right in zip(calls, expected, strict=True)]

    with ThreadPoolExecutor(THREADS) as pool:
        assert all(all(results) for results in pool.map(work, range(200)))


def test_large_work_in_several_threads(device):
    # Large enough for the CPU backend to use its own threads under each of ours.
    x = torch.randn(700, 700, device=device)
    big = torch.randn(3_000_000, device=device)
    expected = tw.matmul(x, x), tw.softmax(big), tw.add(big, big)

    def work(_):
        got = tw.matmul(x, x), tw.softmax(big), tw.add(big, big)
        return all(torch.equal(g, e) for g, e in zip(got, expected, strict=True))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(12)))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_matmul_is_the_first_that_a_thread_does_on_a_gpu(dtype):
    # No context is current there. The memory of the result is cached: nothing before the launch makes one so.
    x = torch.randn(700, 704, device="cuda").to(dtype)
    y, expected = x.clone(), tw.matmul(x, x.mT)
    del expected
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(lambda: tw.matmul(y, y.mT)).result()
    assert torch.equal(got, tw.matmul(x, x.mT))


def test_errors_in_threads_reach_their_own_caller(device):
    x = torch.randn(4, 5, device=device)

    def work(index):
        if index % 2:
            with pytest.raises(tw.DimError, match=f"dim={index + 10}"):
                tw.softmax(x, index + 10)
            return True
        return torch.equal(tw.add(x, index), x + index)

    with ThreadPoolExecutor(THREADS) as pool:
        assert all(pool.map(work, range(400)))


def test_other_threads_run_while_a_large_call_works():
    # A long call on the CPU gives up the interpreter: a ticker beside it keeps ticking.
    x = torch.randn(2500, 2500)
    ticks, done = [0], threading.Event()
    ticks_inside = []

    def tick():
        while not done.is_set():
            ticks[0] += 1
            done.wait(0.0005)

    ticker = threading.Thread(target=tick)
    ticker.start()
    try:
        for _ in range(5):
            before = ticks[0]
            tw.matmul(x, x)
            ticks_inside.append(ticks[0] - before)
    finally:
        done.set()
        ticker.join()
    assert max(ticks_inside) > 1


@pytest.mark.parametrize(
    ("tilewise", "rayon", "omp", "threads"),
    [
        (None, None, "3", 3),
        (None, None, " 3,2", 3),
        (None, None, "1", 1),
        (None, "2", "3", 2),
        (None, "2", None, 2),
        ("4", "2", "3", 4),
        ("1", None, "3", 1),
        (None, "100000", None, 16 * len(os.sched_getaffinity(0))),
        *((None, None, text, None) for text in (None, "", "0", "-1", "many", "3x")),
    ],
)
def test_the_environment_says_how_many_threads_there_are(tilewise, rayon, omp, threads):
    printed = fresh.run(
        """
        import pathlib
        import time
        import numpy as np
        import tilewise as tw

        x = np.ones((2048, 2048), np.float32)
        tw.add(x, tw.softmax(x))
        expected = tw.explain(tw.add, x, x).cpu.threads
        tasks = pathlib.Path("/proc/self/task")
        # The caller is one of them. A thread has its name from itself, when it comes to run.
        for _ in range(100):
            found = 1 + sum(task.read_text().startswith("tilewise-") for task in tasks.glob("*/comm"))
            if found >= expected:
                break
            time.sleep(0.05)
        print(expected, found)
        """,
        TILEWISE_NUM_THREADS=tilewise,
        RAYON_NUM_THREADS=rayon,
        OMP_NUM_THREADS=omp,
    )
    expected = threads or len(os.sched_getaffinity(0))
    assert printed.split() == [str(expected)] * 2


@pytest.mark.parametrize(("text", "warned"), [("many", True), ("0", True), ("", False), ("2", False)])
def test_a_number_of_threads_that_is_none_is_warned_of(text, warned):
    code = "import numpy, tilewise; tilewise.softmax(numpy.ones((1000, 1000)))"
    environment = {**os.environ, "TILEWISE_NUM_THREADS": text}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    said = f'tilewise: TILEWISE_NUM_THREADS="{text}" is not a positive integer: one thread per core is used'
    assert done.stderr.splitlines() == [said] * warned


@pytest.mark.gpu
def test_threads_on_their_own_streams():
    def work(seed):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            x = torch.randn(64, 500, device="cuda")
            for _ in range(30):
                product = tw.matmul(tw.softmax(x), x.mT)
                total = tw.add(product, product)
            expected = 2 * (torch.softmax(x.double(), -1) @ x.double().mT)
        stream.synchronize()
        return torch.allclose(total.double(), expected, rtol=1e-4, atol=1e-4)

    with ThreadPoolExecutor(THREADS) as pool:
        assert all(pool.map(work, range(32)))
