"""How a record is read depends on that record and on what is public, never on another record."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from dpsinkhorn.data import DataError, from_arrays, load_dataset, number_classes
from dpsinkhorn.transport import TransportError, read_points
from support.reading import FORMATS, Reading, try_pairs

LINES = "label,groups," + ",".join(f"pixel{k}" for k in range(4))


def write(path, *rows, header=LINES):
    path.write_text("\n".join([header, *rows, ""]))
    return path


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_one_more_record_leaves_the_others_as_they_are(form, tmp_path):
    tally = try_pairs(form, tmp_path, pairs=120, seed=11)
    assert tally.violations == ()
    assert 0 < tally.refused < tally.pairs  # both outcomes are tried


@pytest.mark.long
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_ten_thousand_records(form, tmp_path):
    tally = try_pairs(form, tmp_path, pairs=10_000, seed=12)
    print(
        f"\n{form.name}: {tally.pairs:,} pairs, {tally.refused:,} refused, {len(tally.violations)} violations"
    )
    assert tally.violations == ()


class TestBreaks:
    """Each of these changed the reading of other records once."""

    ROWS = ("a,100000000000000001,0,1,1,0", "b,100000000000000002,1,0,1,1", "a,100000000000000003,0,0,1,0")

    def same_or_refused(self, path, extra, **options):
        alone = load_dataset(write(path, *self.ROWS), **options)
        try:
            both = load_dataset(write(path, *self.ROWS, extra), **options)
        except DataError:
            return "refused"
        assert Reading.of(both, without=len(self.ROWS)) == Reading.of(alone)
        return "the same"

    def test_a_decimal_point_does_not_rescale_everybody(self, tmp_path):
        record = "a,100000000000000004,0.5,0,0,0"
        assert self.same_or_refused(tmp_path / "a.csv", record) == "refused"
        assert self.same_or_refused(tmp_path / "a.csv", record, value_range=(0, 1)) == "the same"
        assert self.same_or_refused(tmp_path / "a.csv", record, value_range=(0, 255), size=3) == "the same"

    def test_a_long_identifier_does_not_regroup_others(self, tmp_path):
        record = "a,99999999999999999999,0,0,0,0"
        assert self.same_or_refused(tmp_path / "a.csv", record) == "the same"
        assert load_dataset(tmp_path / "a.csv").units == 4

    @pytest.mark.parametrize("number", [2**53 + 1, 2**63])
    def test_identifiers_as_floats_are_refused(self, number):
        images = np.zeros((3, 2, 2), np.uint8)
        with pytest.raises(DataError, match="decimal numbers"):
            from_arrays(images, groups=np.array([number, number + 1, 0.5]))
        assert from_arrays(images, groups=[number, number + 1, -1]).units == 3

    def test_a_class_does_not_shift_the_others(self, tmp_path):
        for classes in (2, 3):
            with pytest.raises(DataError, match="state the names of the classes"):
                load_dataset(write(tmp_path / "a.csv", *self.ROWS), classes=classes)
        found = load_dataset(write(tmp_path / "a.csv", *self.ROWS), classes=["0", "a", "b"])
        assert found.labels.tolist() == [1, 2, 1]

    @pytest.mark.parametrize("more", [1, "1", " 1.0", "True", True, np.True_])
    def test_a_label_of_another_type_does_not_shift_the_others(self, more):
        """A truth value among numbers is a name, since it is one as soon as somebody's label is text."""
        images, labels = np.zeros((5, 2, 2), np.uint8), [False, 1, True, 1]
        found = from_arrays(images[:4], labels), from_arrays(images, [*labels, more])
        assert found[0].class_names == found[1].class_names == ("1", "False", "True")
        assert found[0].labels.tolist() == found[1].labels.tolist()[:4] == [1, 0, 2, 0]
        alone = np.array([True, False], dtype=object)
        assert number_classes(alone)[0].tolist() == number_classes([*alone, "True"])[0].tolist()[:2] == [1, 0]
        assert number_classes(alone)[1].tolist() == [False, True]

    @pytest.mark.parametrize("kind", ["uint16", "float32", "bool"])
    def test_an_image_of_another_type_does_not_rescale_a_list(self, kind):
        images = [np.ones((2, 2), np.uint8)] * 3
        assert from_arrays(images).value_range == (0, 255)
        with pytest.raises(DataError, match=f"images differ in type .uint8, {kind}."):
            from_arrays([*images, np.ones((2, 2), kind)])

    def test_an_open_quote_swallows_no_record(self, tmp_path):
        rows = ('a,"x,0,1,1,0', 'b,y,1,0,1,1"', "a,z,0,0,1,0")
        with pytest.raises(DataError, match=r"3 lines but|cannot read"):
            load_dataset(write(tmp_path / "a.csv", *rows))

    def test_two_lines_for_one_picture(self, tmp_path):
        """CelebA's tables name their pictures: a second line must not take the place of the first."""
        (tmp_path / "img_align_celeba").mkdir()
        for name in ("a.jpg", "b.jpg"):
            Image.new("RGB", (4, 4)).save(tmp_path / "img_align_celeba" / name)
        (tmp_path / "list_eval_partition.txt").write_text("a.jpg 0\nb.jpg 0\n")
        attributes = tmp_path / "list_attr_celeba.txt"
        attributes.write_text("2\nMale Young\na.jpg 1 1\nb.jpg -1 1\n")
        assert load_dataset(tmp_path).labels.tolist() == [1, 0]
        attributes.write_text("2\nMale Young\na.jpg 1 1\nb.jpg -1 1\na.jpg -1 1\n")
        with pytest.raises(DataError, match="two lines for a"):
            load_dataset(tmp_path)
        (tmp_path / "list_eval_partition.txt").write_text("a.jpg 0\nb.jpg 0\nb.jpg 0\n")
        with pytest.raises(DataError, match="a picture twice"):
            load_dataset(tmp_path, unlabelled=True)


class TestPoints:
    def test_dialects(self, tmp_path):
        for name, separator, text in (
            ("a.csv", ",", "1.5"),
            ("b.csv", ";", "1,5"),
            ("c.csv", "\t", "1,5"),
            ("d.tsv", "\t", "1.5"),
        ):
            (tmp_path / name).write_text(f"age{separator}income\n{text}{separator}2\n")
            np.testing.assert_array_equal(read_points(tmp_path / name), [[1.5, 2.0]])

    def test_an_open_quote_swallows_no_point(self, tmp_path):
        (tmp_path / "a.csv").write_text('age,income\n1,"2\n3,4\n5,6"\n')
        with pytest.raises(TransportError, match="as a table"):
            read_points(tmp_path / "a.csv")
