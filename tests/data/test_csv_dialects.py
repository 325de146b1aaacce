"""CSV files as other programs write them: separators, decimal commas, encodings, no line of names."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsinkhorn.data import DataError, load_dataset
from dpsinkhorn.data.columns import check_names
from support.readers import GREY, LABELS, NAMES, ReaderContract, encoded, pixel_columns, write_csv


def lines(images, labels=None, separator=";"):
    """A table of pixels with a line of names."""
    names = [*([] if labels is None else ["label"]), *pixel_columns(images)]
    rows = [[*([] if labels is None else [labels[k]]), *image.ravel()] for k, image in enumerate(images)]
    return [separator.join(str(value) for value in row) for row in [names, *rows]]


def refusal(path, **options):
    with pytest.raises(DataError) as caught:
        load_dataset(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestSemicolons(ReaderContract):
    holds_depth = False

    def write(self, folder, images, labels=None, persons=None):
        rest = {"label": labels, "groups": persons}
        columns = {**{k: list(v) for k, v in rest.items() if v is not None}, **pixel_columns(images)}
        path = write_csv(folder / "set.csv", columns)
        path.write_text(path.read_text().replace(",", ";"))
        return path

    def test_as_excel_writes_it(self, tmp_path):
        text = "\r\n".join(lines(GREY, LABELS)) + "\r\n"
        (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbf" + text.encode())
        self.check(load_dataset(tmp_path / "a.csv"), GREY, LABELS)

    def test_decimal_commas_and_points(self, tmp_path):
        images = np.round(GREY / 255, 3)
        text = "\n".join(lines(images, LABELS)) + "\n"
        for content in (text, text.replace(".", ",")):
            (tmp_path / "a.csv").write_text(content)
            self.check(load_dataset(tmp_path / "a.csv", value_range=(0, 1)), images, LABELS)

    def test_whole_numbers_beside_decimal_commas(self, tmp_path):
        (tmp_path / "a.csv").write_text("label;pixel0;pixel1;pixel2;pixel3\n0;1;0,5;0;0,25\n1;0;1;1;0\n")
        found = load_dataset(tmp_path / "a.csv", value_range=(0, 1))
        assert found.images.reshape(2, 4).tolist() == [[1, 0.5, 0, 0.25], [0, 1, 1, 0]]

    def test_a_comma_within_quotes_separates_nothing(self, tmp_path):
        (tmp_path / "a.csv").write_text('label;"age, years";pixel0\nill;7;255\nwell;8;0\n')
        found = load_dataset(tmp_path / "a.csv")
        assert (found.class_names, found.unused_columns) == (("ill", "well"), ("age, years",))

    def test_tabs_in_a_csv(self, tmp_path):
        (tmp_path / "a.csv").write_text("\n".join(lines(GREY, LABELS, "\t")) + "\n")
        self.check(load_dataset(tmp_path / "a.csv"), GREY, LABELS)

    def test_doubt_is_said(self, tmp_path):
        for text in (
            "label;age, years;pixel0\n0;7;255\n",
            "label;age, years;pixel0\n",
            "label|pixel0\n0|7\n",
        ):
            (tmp_path / "a.csv").write_text(text)
            assert "semicolons or tabs separate columns where no comma" in refusal(tmp_path / "a.csv")
        for text in ("label,age\n0,7\n", "label,pixel0\n0,7,8\n", "label;age\n0;7\n"):
            (tmp_path / "a.csv").write_text(text)
            assert "semicolons" not in refusal(tmp_path / "a.csv")


class TestNoLineOfNames:
    @pytest.mark.parametrize("separator", [",", ";", "\t"])
    @pytest.mark.parametrize("label", [[], [7], ["secret"]])
    def test_pixels(self, tmp_path, separator, label):
        for pixels in ([201, 13, 77, 0], [0, 0, 0, 91], [0.25, 0.5, 0.125, 1.0]):
            row = separator.join(str(value) for value in [*label, *pixels])
            (tmp_path / "a.csv").write_text(f"{row}\n{row}\n")
            for options in ({}, {"label": "finding"}, {"label": "7"}):
                message = refusal(tmp_path / "a.csv", **options).removeprefix(str(tmp_path))
                assert "no line of column names" in message
                assert "add a line" in message
                assert not any(private in message for private in ("secret", "201", "91", "0.125"))

    def test_decimal_commas(self, tmp_path):
        (tmp_path / "a.csv").write_text("3;0,25;0,5;0,125;1\n4;0,25;0,5;0,125;1\n")
        assert "no line of column names" in refusal(tmp_path / "a.csv")

    def test_paths(self, tmp_path):
        (tmp_path / "ann.png").write_bytes(encoded(GREY[0]))
        (tmp_path / "a.csv").write_text("ann.png,0\nann.png,1\n")
        message = refusal(tmp_path / "a.csv").removeprefix(str(tmp_path))
        assert "no line of column names" in message
        assert "ann" not in message

    @pytest.mark.parametrize("start", [0, 1])
    def test_names_that_count(self, tmp_path, start):
        pixels = {str(start + k): v for k, v in enumerate(pixel_columns(GREY).values())}
        for columns in (pixels, {"": list(range(12)), **pixels}, {"diagnosis": list(LABELS), **pixels}):
            path = write_csv(tmp_path / "a.csv", columns)
            assert np.array_equal(load_dataset(path, size=GREY.shape[1:3]).images, GREY)
            with pytest.raises(DataError, match=r"images only.*--size"):  # it may be a table of anything
                load_dataset(path)

    def test_numbers_beside_known_names(self, tmp_path):
        (tmp_path / "a.csv").write_text("label,2021,1999\n0,5,5\n")
        assert load_dataset(tmp_path / "a.csv", size=(1, 2)).records == 1
        (tmp_path / "a.csv").write_text("finding,2021,1999\n0,5,5\n")
        assert load_dataset(tmp_path / "a.csv", size=(1, 2), label="finding").records == 1

    @given(st.lists(st.integers(0, 255), min_size=4, max_size=50).filter(lambda row: row[0] > 1))
    def test_any_row(self, row):
        with pytest.raises(DataError, match=r"no line of column names.* images only, not for measurements"):
            check_names([str(value) for value in row], ["label"], "a.csv")


class TestEncoding:
    @pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16"])
    def test_words_are_not_garbled(self, tmp_path, encoding):
        rows = ["label,groups,pixel0", "gesund,a,1", "überwiegend krank,b,2"]
        path = tmp_path / "a.csv"
        path.write_bytes("\n".join(rows).encode(encoding))
        assert "is not UTF-8 text; save it as UTF-8" in refusal(path)
        path.write_text("\n".join(rows), encoding="utf-8")
        assert load_dataset(path).class_names == ("gesund", "überwiegend krank")

    @pytest.mark.parametrize(
        "text", ["größe,label,pixel0\n1,0,2\n", "label,groups,pixel0\n0,Müller,2\n", "label,path\n0,ä.png\n"]
    )
    def test_names_persons_and_paths(self, tmp_path, text):
        (tmp_path / "a.csv").write_bytes(text.encode("latin-1"))
        assert "not UTF-8" in refusal(tmp_path / "a.csv")

    def test_far_down_the_file(self, tmp_path):
        good = "label,pixel0\n" + "healthy enough,7\n" * 100_000  # more than one block of the reader
        (tmp_path / "a.csv").write_bytes(good.encode() + "größer,7\n".encode("latin-1"))
        assert "not UTF-8" in refusal(tmp_path / "a.csv")

    def test_a_column_that_is_not_read_does_not_matter(self, tmp_path):
        (tmp_path / "a.csv").write_bytes("label,note,pixel0\n0,größer,7\n".encode("latin-1"))
        assert load_dataset(tmp_path / "a.csv").records == 1


def test_names_of_classes_are_kept(tmp_path):
    (tmp_path / "a.csv").write_text("\n".join(lines(GREY, [NAMES[k] for k in LABELS])) + "\n")
    assert load_dataset(tmp_path / "a.csv").class_names == tuple(sorted(NAMES))
