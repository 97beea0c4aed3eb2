"""cupy and jax arrays, where those libraries are installed."""

import pytest
import tilewise as tw

np = pytest.importorskip("numpy")


@pytest.fixture
def cupy():
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("no CUDA device here")
    return cupy


@pytest.fixture
def jax():
    return pytest.importorskip("jax")


def numbers(*shape):
    return np.random.default_rng(3).standard_normal(shape).astype("f4")


def check_all(x, b, convert, kind):
    """Every operation on the library's own arrays equals the same on numpy's, and returns its own type."""
    for got, expected in [
        (tw.add(convert(x), convert(x), alpha=2), 3 * x),
        (tw.add(convert(x), 1.5), x + 1.5),
        (tw.softmax(convert(x)), tw.softmax(x)),
        (tw.log_softmax(convert(x), 0), tw.log_softmax(x, 0)),
        (tw.matmul(convert(x), convert(b)), x.astype("f8") @ b.astype("f8")),
    ]:
        assert isinstance(got, kind)
        np.testing.assert_allclose(
            np.asarray(got.get() if hasattr(got, "get") else got), expected, rtol=1e-5, atol=1e-5
        )


@pytest.mark.gpu
def test_cupy_values(cupy):
    check_all(numbers(37, 50), numbers(50, 21), cupy.asarray, cupy.ndarray)


@pytest.mark.gpu
def test_cupy_views(cupy):
    x = numbers(40, 50)
    for view in (lambda p: p.T, lambda p: p[3:30:2, 1:40], lambda p: p[::-1, ::-2], lambda p: p[:, None, 5]):
        got = tw.add(view(cupy.asarray(x)), 1)
        np.testing.assert_array_equal(got.get(), view(x) + 1)
        np.testing.assert_allclose(
            tw.softmax(view(cupy.asarray(x)), 0).get(), tw.softmax(view(x), 0), rtol=5e-6
        )


@pytest.mark.gpu
def test_cupy_out(cupy):
    x = numbers(300, 40)
    out = cupy.full((300, 40), np.nan, "f4")
    assert tw.softmax(cupy.asarray(x), out=out) is out
    np.testing.assert_allclose(out.get(), tw.softmax(x), rtol=5e-6)


@pytest.mark.gpu
def test_cupy_streams_are_respected(cupy):
    x = cupy.zeros(1 << 22, "f4")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        # A long queue of work before the value is right, then our call, then a reader, on one stream.
        for _ in range(200):
            x += 1
        y = tw.add(x, 1)
        z = y + 1
    stream.synchronize()
    assert float(z.min()) == float(z.max()) == 202.0


def test_jax_values(jax):
    check_all(numbers(37, 50), numbers(50, 21), jax.numpy.asarray, jax.Array)


def test_jax_bfloat16(jax):
    x = jax.numpy.asarray(numbers(9, 33), dtype="bfloat16")
    got = tw.softmax(x)
    assert got.dtype == x.dtype
    np.testing.assert_allclose(
        np.asarray(got, "f4"), np.asarray(jax.nn.softmax(x.astype("f4")), "f4"), rtol=2**-8
    )


def test_jax_arrays_are_immutable(jax):
    x = jax.numpy.ones(5)
    with pytest.raises(tw.TilewiseError):
        tw.add(x, 1, out=x)
    assert x.tolist() == [1.0] * 5


def test_what_jax_traces_with_is_refused(jax):
    with pytest.raises(
        tw.UnsupportedError, match=r"`x` is what jax traces a function with.*outside of jax.jit"
    ):
        jax.jit(tw.softmax)(jax.numpy.ones(5))
