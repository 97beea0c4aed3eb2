"""Any object with __dlpack__: both kinds of capsule, old and odd producers, deleters called exactly once."""

import gc

import pytest
import tilewise as tw
from support.exchange_table import Array, published
from support.producer import CPU, IS_COPIED, READ_ONLY, Lender, OldProducer, Producer

np = pytest.importorskip("numpy")


def numbers(*shape, dtype="f4"):
    return np.random.default_rng(7).standard_normal(shape).astype(dtype)


def read(result):
    """The values of a result, which the producer's own from_dlpack made."""
    assert type(result) is Producer
    return result.array


def assert_returned(*producers):
    """Every capsule was consumed or dropped, and its deleter ran once."""
    gc.collect()
    for producer in producers:
        assert producer.deleted == producer.exported
        assert not producer._alive


def test_results_live_on_their_own():
    result = read(tw.add(Producer(numbers(300, 40)), 1))
    gc.collect()
    assert result.flags.c_contiguous
    np.testing.assert_array_equal(result, numbers(300, 40) + 1)


def test_a_producer_without_from_dlpack_needs_out():
    x, target = numbers(4), np.zeros(4, "f4")
    with pytest.raises(tw.UnsupportedError, match=r"no result of type .*Lender can be made"):
        tw.add(Lender(x), 1)
    out = Lender(target)
    assert tw.add(Lender(x), 1, out=out) is out
    np.testing.assert_array_equal(target, x + 1)


@pytest.mark.parametrize("versioned", [True, False])
def test_values(versioned):
    x, y = numbers(5, 7), numbers(5, 7)
    a, b = Producer(x, versioned=versioned), Producer(y, versioned=versioned)
    np.testing.assert_array_equal(read(tw.add(a, b, alpha=2)), x + 2 * y)
    np.testing.assert_array_equal(read(tw.softmax(a)), tw.softmax(x))
    np.testing.assert_array_equal(read(tw.log_softmax(a, 0)), tw.log_softmax(x, 0))
    np.testing.assert_array_equal(read(tw.matmul(a, Producer(y.T, versioned=versioned))), tw.matmul(x, y.T))
    assert_returned(a, b)


def test_a_producer_is_asked_for_a_versioned_capsule_and_no_copy():
    producer = Producer(numbers(4))
    tw.add(producer, 1)
    assert producer.asked[0]["max_version"] >= (1, 0)
    # The CPU has no streams.
    assert producer.asked[0]["stream"] is None
    assert_returned(producer)


def test_a_producer_that_does_not_know_max_version_is_asked_again_without():
    x = numbers(3, 4)
    producer = OldProducer(x)
    np.testing.assert_array_equal(read(tw.add(producer, 1)), x + 1)
    assert_returned(producer)


def test_a_type_error_of_the_producer_itself_is_not_taken_for_an_old_producer():
    class Broken(Producer):
        def __dlpack__(self, **options):
            raise TypeError("the tensor is locked")

    with pytest.raises(tw.UnsupportedError, match="the tensor is locked"):
        tw.add(Broken(numbers(2)), 1)


def test_missing_strides_mean_row_major():
    x = numbers(3, 4)
    for versioned in (True, False):
        producer = Producer(x, null_strides=True, versioned=versioned)
        np.testing.assert_array_equal(read(tw.add(producer, 1)), x + 1)


def test_byte_offset_is_added():
    x = numbers(6)
    np.testing.assert_array_equal(read(tw.add(Producer(x, byte_offset=64), 1)), x + 1)


def test_negative_strides():
    x = numbers(5, 6)[::-1, ::-1]
    np.testing.assert_array_equal(read(tw.add(Producer(x), 1)), x + 1)


def test_empty_tensors_may_have_no_memory():
    producer = Producer(numbers(0, 3), data=0)
    assert read(tw.add(producer, 1)).shape == (0, 3)
    assert_returned(producer)


@pytest.mark.parametrize("versioned", [True, False])
def test_out(versioned):
    x, target = numbers(4, 5), np.full((4, 5), np.nan, "f4")
    producer, out = Producer(x, versioned=versioned), Producer(target, versioned=versioned)
    assert tw.add(producer, 1, out=out) is out
    np.testing.assert_array_equal(target, x + 1)
    assert_returned(producer, out)


def test_a_read_only_producer_is_read_but_not_written():
    x = numbers(4)
    before = x.copy()
    read_only = Producer(x, flags=READ_ONLY)
    np.testing.assert_array_equal(read(tw.add(read_only, 1)), x + 1)
    with pytest.raises(tw.LayoutError, match="`out` is read-only"):
        tw.add(Producer(numbers(4)), 1, out=read_only)
    np.testing.assert_array_equal(x, before)
    assert_returned(read_only)


TABLES = {"describes": (True, False), "exports": (False, True), "describes and exports": (True, True)}


@pytest.mark.parametrize("table", TABLES)
def test_an_exchange_table_is_asked_what_may_be_written(table):
    describes, exports = TABLES[table]
    kind = published(Array, describes=describes, exports=exports)
    x, target = numbers(4), np.full(4, np.nan, "f4")
    for _ in range(3):
        plain = kind(target)
        assert tw.add(kind(x), 1, out=plain) is plain
        np.testing.assert_array_equal(target, x + 1)
    for flags, error, match in (
        (READ_ONLY, tw.LayoutError, "`out` is read-only"),
        (IS_COPIED, tw.TilewiseError, "hands out a copy"),
    ):
        flagged = kind(target, flags=flags)
        np.testing.assert_array_equal(read(tw.add(flagged, 1)), x + 2)
        for call in (
            lambda out: tw.add(kind(x), 7, out=out),
            lambda out: tw.softmax(kind(x), out=out),
            lambda out: tw.add(out, 7, out=out),
            lambda out: tw.matmul(kind(np.ones((4, 4), "f4")), kind(x), out=out),
        ):
            with pytest.raises(error, match=match):
                call(flagged)
        np.testing.assert_array_equal(target, x + 1)
        assert_returned(flagged)


def test_a_copy_is_no_output():
    # The producer says it lent a copy: what we wrote would be lost.
    target = Producer(np.zeros(4, "f4"), flags=IS_COPIED)
    with pytest.raises(tw.TilewiseError):
        tw.add(Producer(numbers(4)), 1, out=target)
    assert_returned(target)


@pytest.mark.parametrize(
    ("claims", "error", "match"),
    [
        ({"code": 5, "bits": 64}, "DTypeError", "complex64"),
        ({"code": 3}, "DTypeError", "`x` has dtype"),
        ({"lanes": 2}, "DTypeError", "`x` has dtype"),
        ({"code": 1, "bits": 32}, "DTypeError", "uint32"),
        ({"code": 10, "bits": 8}, "DTypeError", "float8"),
        ({"device": (8, 0)}, "DeviceError", "supported devices"),
        ({"device": (10, 1)}, "DeviceError", "supported devices"),
        ({"data": 0}, "DeviceError", "no memory"),
        ({"major": 2}, "UnsupportedError", "could not be imported through DLPack"),
    ],
    ids=str,
)
def test_what_is_refused_is_given_back(claims, error, match):
    producer = Producer(numbers(4), **claims)
    with pytest.raises(getattr(tw, error), match=match):
        tw.add(producer, 1)
    assert_returned(producer)


def test_a_refusal_of_the_second_argument_gives_back_the_first():
    x, y = Producer(numbers(4)), Producer(numbers(5))
    with pytest.raises(tw.ShapeError):
        tw.add(x, y)
    assert_returned(x, y)


@pytest.mark.parametrize("returned", [None, 7, "capsule", object()])
def test_a_producer_that_returns_no_capsule(returned):
    class Odd(Producer):
        def __dlpack__(self, **options):
            return returned

    with pytest.raises(tw.UnsupportedError, match="could not be imported through DLPack"):
        tw.softmax(Odd(numbers(3)))


def test_a_capsule_that_was_consumed_before():
    class Reused(Producer):
        def __dlpack__(self, **options):
            self.capsule = getattr(self, "capsule", None) or self._capsule(True)
            return self.capsule

    producer = Reused(numbers(3))
    tw.add(producer, 1)
    with pytest.raises(tw.UnsupportedError, match="could not be imported through DLPack"):
        tw.add(producer, 1)
    assert producer.deleted == 1


@pytest.mark.parametrize("error", [RuntimeError, ValueError, BufferError, KeyError])
def test_an_exception_of_the_producer_is_told_in_our_words(error):
    class Failing(Producer):
        def __dlpack__(self, **options):
            raise error("out of ink")

    with pytest.raises(tw.UnsupportedError, match="out of ink"):
        tw.add(Failing(numbers(3)), 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
def test_exceptions_that_are_not_about_the_tensor_pass_through(error):
    class Failing(Producer):
        def __dlpack__(self, **options):
            raise error

    with pytest.raises(error):
        tw.add(Failing(numbers(3)), 1)


def test_kinds_do_not_mix():
    with pytest.raises(tw.DeviceError, match="must come from one library"):
        tw.add(Producer(numbers(3)), numbers(3))


def test_ten_thousand_calls_return_every_capsule():
    x, y, out = Producer(numbers(8)), Producer(numbers(8), versioned=False), Producer(numbers(8))
    for _ in range(10_000):
        tw.add(x, y, out=out)
    assert_returned(x, y, out)
    assert x.device == (CPU, 0)
