"""numpy arrays in and out. Needs no torch: references are numpy's own, in float64."""

import pytest
import tilewise as tw

np = pytest.importorskip("numpy")

ALL = [bool, "u1", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]
FLOATS = ["f2", "f4", "f8"]
dtypes = pytest.mark.parametrize("dtype", FLOATS)


@pytest.fixture
def rng():
    return np.random.default_rng(20)


def assert_close(got, expected, steps=1.0):
    """Within `steps` steps in the last place of the result's dtype."""
    assert type(got) is np.ndarray
    assert got.shape == expected.shape
    limit = steps * np.finfo(got.dtype).eps * np.abs(expected) + np.finfo(got.dtype).tiny
    assert np.all(np.abs(got - expected) <= limit), f"off by up to {np.max(np.abs(got - expected))}"


def softmax(x, axis=-1):
    e = np.exp(x.astype("f8") - x.astype("f8").max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@pytest.mark.parametrize("dtype", ALL)
def test_add(rng, dtype):
    x = (rng.standard_normal((7, 33)) * 9).astype(dtype)
    y = (rng.standard_normal((7, 33)) * 9).astype(dtype)
    got = tw.add(x, y)
    assert type(got) is np.ndarray
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, x + y)


def test_code_of_the_callers_moves_no_memory_that_was_described():
    x = np.arange(1 << 16, dtype="f4")
    expected = x.copy()

    class Resizing(np.ndarray):
        @property
        def dtype(self):
            np.ndarray.resize(self, (1 << 22,), refcheck=False)
            return np.dtype("f4")

    hostile = np.ndarray.__new__(Resizing, (1 << 16,), "f4")
    np.ndarray.__setitem__(hostile, slice(None), expected)
    for _ in range(3):
        result = tw.add(hostile, hostile)
        np.testing.assert_array_equal(np.asarray(result)[: 1 << 16], 2 * expected)
        assert np.ndarray.__len__(hostile) == 1 << 16

    def enlarge():
        np.ndarray.resize(x, (x.size + (1 << 20),), refcheck=False)

    class Scalar(np.float32):
        @property
        def dtype(self):
            enlarge()
            return np.dtype("f4")

    class Meta(type):
        def __getattr__(cls, name):
            enlarge()
            raise AttributeError(name)

    class Unknown(metaclass=Meta):
        pass

    size = x.size
    assert tw.add(x, Scalar(1)).size == x.size > size
    size = x.size
    with pytest.raises(tw.DTypeError):
        tw.add(x, Unknown())
    assert x.size > size


@dtypes
def test_softmax(rng, dtype):
    x = rng.standard_normal((5, 6, 70)).astype(dtype)
    for axis in range(-3, 3):
        got = tw.softmax(x, axis)
        assert got.dtype == dtype
        steps = {"f2": 1.0, "f4": 16.0, "f8": 64.0}[dtype]
        assert_close(got, softmax(x, axis), steps)
        np.testing.assert_allclose(np.exp(tw.log_softmax(x, axis).astype("f8")), softmax(x, axis), rtol=1e-2)


@dtypes
@pytest.mark.parametrize("target", ["float16", "float32", "float64"])
def test_softmax_dtype_is_named_as_numpy_names_it(rng, dtype, target):
    x = rng.standard_normal((3, 40)).astype(dtype)
    for spelling in (np.dtype(target), getattr(np, target), target):
        got = tw.softmax(x, dtype=spelling)
        assert got.dtype == target
        assert_close(got, softmax(x.astype(target)), 64.0)


@dtypes
def test_matmul(rng, dtype):
    a, b = rng.standard_normal((2, 9, 50)).astype(dtype), rng.standard_normal((50, 13)).astype(dtype)
    bias = rng.standard_normal(13).astype(dtype)
    got = tw.matmul(a, b, bias=bias, activation="relu")
    assert type(got) is np.ndarray
    assert got.dtype == dtype
    expected = np.maximum(a.astype("f8") @ b.astype("f8") + bias.astype("f8"), 0)
    np.testing.assert_allclose(
        got, expected, rtol=np.finfo(dtype).eps, atol=500 * np.finfo(dtype).eps if dtype != "f2" else 1e-3
    )


@pytest.mark.parametrize(
    "view",
    [
        lambda p: p[::-1],
        lambda p: p[:, ::-1],
        lambda p: p[::-2, ::-3],
        lambda p: p.T,
        lambda p: p[::-1].T,
        lambda p: p[3:9, 2:11],
        lambda p: np.broadcast_to(p[0], (6, 12)),
        lambda p: p[:, None, ::-1],
        lambda p: np.flip(p),
        lambda p: np.rot90(p),
    ],
)
def test_views_and_negative_strides(rng, view):
    for dtype in ("f4", "f8", "f2", "i4"):
        parent = (rng.standard_normal((12, 12)) * 9).astype(dtype)
        x = view(parent)
        dense = x.copy()
        np.testing.assert_array_equal(tw.add(x, x), dense + dense)
        np.testing.assert_array_equal(tw.add(x, dense), dense + dense)
        if dtype == "i4":
            continue
        for axis in range(x.ndim):
            steps = 64.0 if dtype == "f8" else 16.0 if dtype == "f4" else 1.0
            assert_close(tw.softmax(x, axis), softmax(dense, axis), steps)
        square = x.reshape(-1, x.shape[-1]) if x.ndim > 2 else x
        expected = square.astype("f8") @ square.T.astype("f8")
        np.testing.assert_allclose(
            tw.matmul(square, square.T), expected, rtol=2e-3, atol=1e-4 if dtype != "f2" else 0.3
        )


def test_a_negative_stride_output(rng):
    memory = np.full(40, -7.0)
    out = memory[35:5:-3]
    x = rng.standard_normal(out.shape)
    assert tw.add(x, 1.0, out=out) is out
    np.testing.assert_array_equal(out, x + 1.0)
    out[:] = -7.0
    assert (memory == -7.0).all()
    assert tw.softmax(x, out=out) is out
    assert_close(out, softmax(x), 64.0)


def test_a_reversed_view_of_the_input_is_no_output(rng):
    x = rng.standard_normal(10)
    before = x.copy()
    with pytest.raises(tw.LayoutError, match="shares memory"):
        tw.add(x, 1.0, out=x[::-1])
    np.testing.assert_array_equal(x, before)


def test_read_only_inputs_are_read_and_never_written(rng):
    x = rng.standard_normal((3, 4))
    x.flags.writeable = False
    np.testing.assert_array_equal(tw.add(x, x), x + x)
    with pytest.raises(tw.LayoutError, match="`out` is read-only"):
        tw.add(x, 1.0, out=x)
    with pytest.raises(tw.LayoutError, match="`out` is read-only"):
        tw.softmax(np.ones((3, 4)), out=np.broadcast_to(np.float64(0), (3, 4)))


def test_results_own_their_memory(rng):
    x = rng.standard_normal((30, 40)).astype("f4")
    for got in (tw.add(x, 1), tw.softmax(x), tw.matmul(x, x.T)):
        assert got.flags.c_contiguous
        assert got.flags.writeable
        got += 1
        assert not np.shares_memory(got, x)


def test_empty_and_zero_dimensional():
    assert tw.add(np.ones((0, 3)), np.ones(3)).shape == (0, 3)
    got = tw.add(np.array(2.5), np.array(1.0))
    assert type(got) is np.ndarray
    assert got.shape == ()
    assert got == 3.5
    assert tw.softmax(np.array(2.5)) == 1.0
    np.testing.assert_array_equal(tw.matmul(np.ones((2, 0)), np.ones((0, 3))), np.zeros((2, 3)))
    assert tw.matmul(np.arange(3.0), np.arange(3.0)) == 5.0


def test_promotion_follows_torch():
    f4, i8, u1 = np.ones(2, "f4"), np.ones(2, "i8"), np.ones(2, "u1")
    assert tw.add(f4, i8).dtype == np.float32
    assert tw.add(u1, np.ones(2, "i1")).dtype == np.int16
    assert tw.add(f4, 2.5).dtype == np.float32
    assert tw.add(u1, 7).dtype == np.uint8
    # torch's default float, not numpy's.
    assert tw.add(i8, 2.5).dtype == np.float32


@pytest.mark.parametrize(
    "scalar", [np.float32(1.5), np.float64(1.5), np.int16(3), np.bool_(True), np.float16(0.5)]
)
def test_numpy_scalars_are_operands_and_alphas(scalar):
    x = np.arange(4, dtype="f4")
    got = tw.add(x, scalar)
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, x + np.float32(scalar))
    np.testing.assert_array_equal(tw.add(scalar, x), got)
    if not isinstance(scalar, np.bool_):
        np.testing.assert_array_equal(tw.add(x, x, alpha=scalar), x + x * np.float32(scalar))


@pytest.mark.parametrize(
    "array",
    [
        np.ones(3, ">f4"),
        np.ones(3, "u4"),
        np.ones(3, "c8"),
        np.array(["a", "b"]),
        np.array([None, 1], dtype=object),
        np.array(["2020-01-01"], dtype="M8[D]"),
        np.zeros(2, dtype=[("a", "f4"), ("b", "i4")]),
        np.ones(3, np.longdouble),
    ],
    ids=lambda a: str(a.dtype),
)
def test_dtypes_that_no_operation_takes(array):
    for call in (lambda: tw.add(array, array), lambda: tw.softmax(array), lambda: tw.matmul(array, array)):
        with pytest.raises(tw.DTypeError, match=r"`(x|a)` has dtype"):
            call()


def test_arrays_that_strides_cannot_describe():
    packed = np.zeros(4, dtype=[("a", "u1"), ("b", "f4")])
    with pytest.raises(tw.LayoutError, match="numpy array whose"):
        tw.add(packed["b"], 1)
    unaligned = np.frombuffer(b"\0" * 17, dtype="f4", offset=1, count=4)
    with pytest.raises(tw.LayoutError, match="numpy array whose"):
        tw.softmax(unaligned)


def test_masked_arrays_are_refused_rather_than_unmasked():
    with pytest.raises(tw.UnsupportedError, match="masked"):
        tw.add(np.ma.masked_array([1.0, 2.0], mask=[True, False]), 1)


def test_subclasses_of_ndarray_are_taken():
    class Named(np.ndarray):
        pass

    x = np.arange(6.0).view(Named)
    np.testing.assert_array_equal(tw.add(x, x), 2 * np.arange(6.0))


def test_a_dimension_that_shrinks_the_array():
    x = np.ones((64, 64), "f4")

    class Shrinking:
        def __index__(self):
            x.resize((2, 2), refcheck=False)
            return 1

    assert tw.softmax(x, Shrinking()).shape == (2, 2)
