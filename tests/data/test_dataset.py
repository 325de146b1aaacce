"""`from_arrays` and `Dataset`: what is accepted, how values map, and what each kind of bad input is told."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dpsinkhorn.data import DataError, check_every_class, from_arrays

RNG = np.random.default_rng(5)


def grey(count: int = 4, dtype: type = np.uint8) -> np.ndarray:
    return RNG.integers(0, 256, (count, 3, 5)).astype(dtype)


class TestPoints:
    def test_channels_come_first(self):
        images = RNG.integers(0, 256, (6, 4, 3, 3)).astype(np.uint8)
        points = from_arrays(images).points()
        assert points.dtype == torch.float32
        assert points.shape == (6, 36)
        for n in range(6):
            slow = [
                2 * int(images[n, y, x, c]) / 255 - 1 for c in range(3) for y in range(4) for x in range(3)
            ]
            np.testing.assert_allclose(points[n].numpy(), slow, atol=1e-6)

    @pytest.mark.parametrize(("dtype", "top"), [(np.uint8, 255), (np.uint16, 65535)])
    def test_every_value_of_a_type_is_correctly_rounded(self, dtype, top):
        """Against exact fractions: what float32 holds is the nearest to the true value."""
        values = np.arange(top + 1).astype(dtype)
        points = from_arrays(values.reshape(1, 1, -1)).points()[0].numpy()
        for k in [*range(0, top + 1, 1 + top // 400), top]:
            assert points[k] == np.float32(Fraction(2 * k, top) - 1)
        assert (points.min(), points.max()) == (-1, 1)
        np.testing.assert_array_equal(
            np.rint((points.astype(np.float64) + 1) / 2 * top).astype(dtype), values
        )

    @given(arrays.arrays(np.float32, (3, 2, 2, 1), elements=st.floats(-4, 9, width=32)))
    def test_floats_by_their_stated_range(self, images):
        points = from_arrays(images, value_range=(-4, 9)).points().numpy()
        assert np.abs(points).max() <= 1
        np.testing.assert_allclose((points + 1) / 2 * 13 - 4, images.reshape(3, -1), atol=1e-5)

    def test_the_range_is_never_read_off_the_data(self):
        dim = np.full((2, 2, 2), 10, np.uint8)
        assert from_arrays(dim).points().max() < -0.9

    @pytest.mark.parametrize("indices", [[4, 0, 4], np.array([1]), torch.tensor([3, 2]), [], range(2, 5)])
    def test_rows(self, indices):
        data = from_arrays(grey(5))
        whole = data.points()
        assert torch.equal(data.points(indices), whole[torch.as_tensor(list(indices), dtype=torch.long)])

    def test_indices_that_are_none(self):
        data = from_arrays(grey(5))
        with pytest.raises(DataError, match="whole numbers"):
            data.points([0.5])
        with pytest.raises(IndexError):
            data.points([5])

    def test_more_rows_than_are_converted_at_a_time(self):
        images = RNG.integers(0, 256, (70, 128, 128)).astype(np.uint8)
        points = from_arrays(images).points()
        np.testing.assert_allclose(points.numpy(), images.reshape(70, -1) / 127.5 - 1, atol=1e-6)

    def test_points_are_the_callers_own(self):
        images = grey()
        data = from_arrays(images)
        data.points().zero_()
        np.testing.assert_array_equal(data.images[..., 0], images)
        with pytest.raises(ValueError, match="read-only"):
            data.images[0] = 0
        images[0] = 0  # the caller's array stays the caller's to write


class TestShapes:
    def test_properties(self):
        data = from_arrays(np.zeros((3, 4, 5, 3)), [0, 1, 1], groups=["a", "b", "a"], name="x")
        assert data.records == 3
        assert data.units == 2
        assert data.image_shape == (3, 4, 5)
        assert data.value_range == (0, 1)
        assert data.images.dtype == np.float32
        assert data.labels.dtype == np.int64
        assert from_arrays(np.zeros((3, 4, 5, 3))).units == 3

    def test_printing_shows_no_pixels(self):
        assert repr(from_arrays(np.zeros((2, 4, 4)), [0, 1])) == (
            "Dataset('arrays': 2 images of 4 x 4 x 1, float32, 2 classes)"
        )

    @pytest.mark.parametrize(
        ("images", "says"),
        [
            (np.zeros((0, 4, 4)), "empty"),
            (np.zeros((3, 16)), "height"),
            (np.zeros((3, 3, 8, 8)), "transpose"),
            (np.zeros((3, 8, 8, 4)), "channel"),
            (np.zeros((3, 0, 8)), "no pixels"),
            ([np.zeros((2, 2)), np.zeros((3, 2))], "differ in size"),
            (np.array([None, 1]), "differ in size"),
            (np.full((1, 2, 2), "a"), "no numbers"),
            (np.zeros((1, 2, 2), complex), "no numbers"),
            (np.zeros((1, 2, 2), int), "value_range"),
        ],
    )
    def test_refused(self, images, says):
        with pytest.raises(DataError, match=says) as caught:
            from_arrays(images)
        assert "\n" not in str(caught.value)


class TestValues:
    @pytest.mark.parametrize("bad", [1.001, -0.001, np.nan, np.inf, -np.inf])
    @pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
    def test_floats_outside_of_their_range(self, bad, dtype):
        images = np.zeros((5, 2, 2), dtype)
        images[3, 1, 0] = bad
        with pytest.raises(DataError, match="image 3"):
            from_arrays(images)

    def test_far_into_a_large_array(self):
        images = np.zeros((300, 100, 100), np.float32)
        images[271, 7, 7] = np.nan
        with pytest.raises(DataError, match=r"image 271 .* nan"):
            from_arrays(images)

    def test_a_stated_range_is_checked(self):
        images = np.full((2, 2, 2), 16, np.uint8)
        assert from_arrays(images, value_range=(0, 16)).points().min() == 1
        with pytest.raises(DataError, match="holds 16"):
            from_arrays(images, value_range=(0, 15))

    @pytest.mark.parametrize(
        ("limits", "dtype"), [((0, 255), np.uint8), ((0, 4095), np.uint16), ((-1024, 3071), np.float32)]
    )
    def test_other_whole_numbers_need_a_range(self, limits, dtype):
        images = np.array([[limits]], dtype=np.int64)
        data = from_arrays(images, value_range=limits)
        assert data.images.dtype == dtype
        assert data.points().tolist() == [[-1, 1]]

    def test_other_byte_orders(self):
        images = np.array([[[0, 258, 65535]]], dtype=">u2")
        data = from_arrays(images)
        assert data.images.dtype == np.dtype(np.uint16)
        np.testing.assert_allclose(data.points(), [[-1, 2 * 258 / 65535 - 1, 1]], atol=1e-6)

    def test_truth_values(self):
        assert from_arrays(np.array([[[True, False]]])).points().tolist() == [[1, -1]]

    @pytest.mark.parametrize(
        "limits",
        [(1, 0), (0, 0), (0, np.inf), (np.nan, 1), 5, ("a", "b"), (1, 2, 3), (0, 1e-310), (-1e308, 1e308)],
    )
    def test_ranges_that_are_none(self, limits):
        with pytest.raises(DataError, match="value_range"):
            from_arrays(np.zeros((1, 2, 2)), value_range=limits)


class TestLabels:
    @pytest.mark.parametrize(
        "labels",
        [
            [0, 2, 1, 2],
            (0, 2, 1, 2),
            np.array([0, 2, 1, 2], np.uint8),
            np.array([0.0, 2.0, 1.0, 2.0]),
            np.array([[0], [2], [1], [2]]),
            ["0", "2", "1", "2"],
            np.array([0, 2, 1, 2], dtype=object),
            torch.tensor([0, 2, 1, 2]),
        ],
    )
    def test_whole_numbers_stand_for_themselves(self, labels):
        data = from_arrays(grey(), labels)
        assert data.labels.tolist() == [0, 2, 1, 2]
        assert data.labels.dtype == np.int64
        assert (data.classes, data.class_names) == (3, ())

    def test_numbers_in_text_go_by_value(self):
        assert from_arrays(grey(3), ["10", "9", "2"]).labels.tolist() == [10, 9, 2]

    def test_names(self):
        data = from_arrays(grey(), ["pear", "apple", "pear", "fig"])
        assert data.class_names == ("apple", "fig", "pear")
        assert data.labels.tolist() == [2, 0, 2, 1]
        assert from_arrays(grey(), [b"b", b"a", b"a", b"a"]).class_names == ("a", "b")

    def test_stated_names_keep_their_order(self):
        data = from_arrays(grey(2), ["pear", "apple"], classes=["pear", "fig", "apple"])
        assert data.labels.tolist() == [0, 2]
        assert data.classes == 3
        numbers = from_arrays(grey(2), [10, 1], classes=["1", "10"])
        assert numbers.labels.tolist() == [1, 0]

    def test_stated_number(self):
        assert from_arrays(grey(2), [0, 1], classes=7).classes == 7

    @pytest.mark.parametrize(
        ("labels", "classes", "says"),
        [
            ([0, 1, -1, 0], None, "row 2 .* -1"),
            ([0, 1, 0.5, 0], None, "row 2 .* 0.5"),
            ([0, 1, np.nan, 0], None, "missing in row 2"),
            ([0, 1, np.inf, 0], None, "row 2"),
            ([0, 1, None, 0], None, "missing in row 2"),
            (["a", "", "b", "c"], None, "missing in row 1"),
            (["a", None, "b", "c"], None, "missing in row 1"),
            ([0, 1, 3, 0], 3, "row 2 .* label 3"),
            (["0", "b", "c", "d"], 3, "row 1 .* the label 'b', but with the 3 classes stated"),
            (["b", "c"] * 2, 3, "state the names of the classes"),
            (["a", "b", "c", "d"], ["a", "b", "c"], "'d'"),
            ([0, 1, 2], None, "4 images but 3 labels"),
            ([0, 1, 0, 123456], None, "identifiers"),
            (np.zeros((4, 10)), None, "one value per record"),
            ([0, 1, 0, 1], 0, "classes"),
            ([0, 1, 0, 1], "ab", "classes"),
            ([0, 1, 0, 1], ["a", "a"], "once"),
            (None, 3, "no labels"),
            (np.zeros(4, complex), None, "neither"),
            (np.array([2**63 + 1] * 4, np.uint64), None, "too large"),
        ],
    )
    def test_refused(self, labels, classes, says):
        with pytest.raises(DataError, match=says) as caught:
            from_arrays(grey(), labels, classes=classes)
        assert "\n" not in str(caught.value)

    @given(st.lists(st.integers(0, 9999), min_size=1, max_size=20))
    def test_any_whole_numbers(self, labels):
        data = from_arrays(np.zeros((len(labels), 1, 1)), labels)
        assert data.labels.tolist() == labels
        assert data.classes == max(labels) + 1

    @given(st.lists(st.text(st.characters(categories=["L"]), min_size=1), min_size=1, max_size=20))
    def test_any_names(self, labels):
        data = from_arrays(np.zeros((len(labels), 1, 1)), labels)
        assert [data.class_names[k] for k in data.labels] == labels
        assert list(data.class_names) == sorted(set(labels))

    def test_every_class_must_have_a_record(self):
        check_every_class(from_arrays(grey(), [0, 1, 2, 0]))
        check_every_class(from_arrays(grey()))
        with pytest.raises(DataError, match="class 1 has no records"):
            check_every_class(from_arrays(grey(), [0, 2, 2, 0]))
        with pytest.raises(DataError, match=r"classes 1, 2, 3, 4, 5 and 91 more have .* \(--classes 100\)"):
            check_every_class(from_arrays(grey(), [0, 97, 98, 99]))

    def test_a_class_that_was_stated_may_have_none(self):
        check_every_class(from_arrays(grey(), ["a", "c", "c", "a"], classes=list("abcd")))
        check_every_class(from_arrays(grey(), [0, 1, 2, 3], classes=100))


class TestGroups:
    @given(st.lists(st.one_of(st.integers(), st.text(min_size=1), st.tuples(st.integers())), min_size=1))
    def test_equal_values_are_one_person(self, values):
        values = [value for value in values if not isinstance(value, str) or value.strip()] or [0]
        data = from_arrays(np.zeros((len(values), 1, 1)), groups=values)
        for i, left in enumerate(values):
            for j, right in enumerate(values):
                assert (data.groups[i] == data.groups[j]) == (left == right)
        assert sorted(set(data.groups.tolist())) == list(range(data.units))

    def test_dates_and_numbers(self):
        days = np.array(["2020-01-02", "2020-01-01", "2020-01-02"], dtype="datetime64[D]")
        assert from_arrays(grey(3), groups=days).groups.tolist() == [0, 1, 0]
        assert from_arrays(grey(3), groups=np.array([7, 1, 7])).groups.tolist() == [0, 1, 0]
        assert from_arrays(grey(3), groups=[2**63, -1, 2**63 + 1]).units == 3
        assert from_arrays(grey(3), groups=["ann ", "bob", "ann"]).groups.tolist() == [0, 1, 0]

    @pytest.mark.parametrize(
        ("groups", "says"),
        [
            ([1, 2, 3], "4 images but 3 groups"),
            (["a", None, "b", "c"], "missing in row 1"),
            ([1.0, 2.0, np.nan, 1.0], "missing in row 2"),
            ([[1], [2], [3, 4], [5]], "one name or number"),
            (np.array([7.0, 7.0, 1.0, 2.0]), "decimal numbers"),
            ([7, 7.0, "a", "b"], "decimal numbers"),
        ],
    )
    def test_refused(self, groups, says):
        with pytest.raises(DataError, match=says):
            from_arrays(grey(), groups=groups)
