"""Kinds of pictures that a source may hold, what messages say to do, and what counts as a source."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from dpsinkhorn.data import DataError, from_arrays, load_dataset
from support.readers import GREY, encoded


class TestClassNames:
    """Public names for classes whose labels are numbers or codes."""

    @pytest.fixture
    def load(self, tmp_path):
        def load(labels, **options):
            np.savez(tmp_path / "x.npz", images=np.zeros((len(labels), 4, 4), np.uint8), labels=labels)
            return load_dataset(tmp_path / "x.npz", **options)

        return load

    def test_numbers(self, load):
        data = load([1, 0, 1], class_names=["normal", "pneumonia"])
        assert data.public_names == ("normal", "pneumonia")
        assert data.labels.tolist() == [1, 0, 1]
        # they state the classes: one may have no record, and none may be beyond them
        assert load([0, 0], class_names=["normal", "pneumonia"]).classes == 2
        with pytest.raises(DataError, match="label 2"):
            load([0, 2], class_names=["normal", "pneumonia"])

    def test_codes(self, load):
        data = load(["P", "N"], classes=["N", "P"], class_names=["normal", "pneumonia"])
        assert (data.public_names, data.labels.tolist()) == (("normal", "pneumonia"), [1, 0])
        with pytest.raises(DataError, match="state the names of the classes"):
            load(["P", "N"], class_names=["normal", "pneumonia"])

    @pytest.mark.parametrize("names", [["a"], ["a", "a"], ["a", ""], ["a", "b\n"], ["a", "x" * 201]])
    def test_refused(self, load, names):
        with pytest.raises(DataError, match=r"class name"):
            load([0, 1], classes=2, class_names=names)


class TestModes:
    """Pictures that are neither plain grey nor plain colour, and folders of several kinds."""

    def load(self, folder, pictures, **options):
        for k, picture in enumerate(pictures):
            picture.save(folder / f"{k}.png")
        return load_dataset(folder, **options)

    def test_mixed_sizes(self, tmp_path):
        pictures = [Image.new("L", (4, 4)), Image.new("L", (4, 5))]
        with pytest.raises(
            DataError, match=r"differ in size.*0\.png is 4 x 4.*1\.png is 5 x 4.*state size .--size"
        ):
            self.load(tmp_path, pictures)
        assert self.load(tmp_path, pictures, size=3).image_shape == (1, 3, 3)

    def test_mixed_modes(self, tmp_path):
        pictures = [Image.new("L", (4, 4), 9), Image.new("RGB", (4, 4), (9, 9, 9))]
        with pytest.raises(DataError, match=r"differ in mode.*grey.*colour.*state channels .--channels"):
            self.load(tmp_path, pictures)
        for channels in (1, 3):
            data = self.load(tmp_path, pictures, channels=channels)
            assert data.image_shape == (channels, 4, 4)
            assert (data.images == 9).all()

    def test_mixed_depths(self, tmp_path):
        pictures = [Image.new("L", (4, 4)), Image.fromarray(np.zeros((4, 4), np.uint16))]
        with pytest.raises(DataError, match="depth"):
            self.load(tmp_path, pictures)

    @pytest.mark.parametrize("mode", ["RGBA", "LA"])
    def test_transparency_must_be_asked_away(self, tmp_path, mode):
        with pytest.raises(DataError, match=f"mode {mode}.*state channels .--channels"):
            self.load(tmp_path, [Image.new(mode, (4, 4))])
        assert self.load(tmp_path, [Image.new(mode, (4, 4))], channels=1).image_shape == (1, 4, 4)

    def test_palettes_and_single_bits(self, tmp_path):
        red = Image.new("P", (2, 2), 1)
        red.putpalette([0, 0, 0, 200, 10, 30])
        assert self.load(tmp_path, [red]).images[0, 0, 0].tolist() == [200, 10, 30]
        assert self.load(tmp_path, [Image.new("1", (2, 2), 1)]).images.max() == 255

    def test_sixteen_bits_as_colour_and_resized(self, tmp_path):
        ramp = np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8)
        data = self.load(tmp_path, [Image.fromarray(ramp)], channels=3, size=4)
        assert data.images.dtype == np.uint16
        assert data.image_shape == (3, 4, 4)
        np.testing.assert_allclose(data.images[0, ..., 1].mean(), ramp.mean(), rtol=0.02)

    def test_a_camera_held_sideways(self, tmp_path):
        picture = Image.fromarray(np.arange(12, dtype=np.uint8).reshape(3, 4) * 20)
        exif = Image.Exif()
        exif[0x0112] = 6
        picture.save(tmp_path / "a.png", exif=exif)
        upright = load_dataset(tmp_path).images[0, ..., 0]
        np.testing.assert_array_equal(upright, np.rot90(np.asarray(picture), -1))

    def test_the_crop_is_about_the_centre(self, tmp_path):
        wide = np.zeros((8, 24), np.uint8)
        wide[:, 8:16] = 200
        data = self.load(tmp_path, [Image.fromarray(wide)], size=8)
        assert (data.images == 200).all()

    def test_a_jpeg_made_small_is_near_its_box_means(self, tmp_path):
        y, x = np.mgrid[:128, :128]
        smooth = (127 + 60 * np.sin(x / 30) + 60 * np.cos(y / 25)).astype(np.uint8)
        Image.fromarray(smooth).save(tmp_path / "a.jpg", quality=95)
        small = load_dataset(tmp_path, size=16).images[0, ..., 0]
        boxes = smooth.reshape(16, 8, 16, 8).mean(axis=(1, 3))
        assert np.abs(small - boxes).max() < 6


class TestWhatToDo:
    """Messages say what to do, to a caller of Python and to one of the command line."""

    def test_columns(self, tmp_path):
        (tmp_path / "a.csv").write_text("weight,weight,pixel0\n1,2,3\n")
        with pytest.raises(DataError, match="there are several columns weight for label"):
            load_dataset(tmp_path / "a.csv", label="weight")
        with pytest.raises(DataError, match="there is no column mass for label; the table has weight"):
            load_dataset(tmp_path / "a.csv", label="mass")
        (tmp_path / "b.csv").write_text("weight\n1\n")
        with pytest.raises(DataError, match=r"images only, .* by image \(--image\)"):
            load_dataset(tmp_path / "b.csv")

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            ("pixel0,pixel1\n1,2\n", r"size \(--size "),
            ("pixel0\n300\n", r"value_range \(--value-range "),
            ("label,pixel0\n123456,3\n", r"classes \(--classes\)"),
        ],
    )
    def test_values(self, tmp_path, content, says):
        (tmp_path / "a.csv").write_text(content)
        with pytest.raises(DataError, match=says):
            load_dataset(tmp_path / "a.csv")

    def test_types(self):
        with pytest.raises(DataError, match=r"value_range \(--value-range 0,255\)"):
            from_arrays(np.zeros((2, 4, 4), np.int32))
        with pytest.raises(DataError, match=r"labels \(--label\)"):
            from_arrays(np.zeros((2, 4, 4)), classes=2)

    def test_parts(self, tmp_path):
        (tmp_path / "train").mkdir()
        (tmp_path / "train" / "a.png").write_bytes(encoded(GREY[0]))
        with pytest.raises(DataError, match=r"no test part, only train; choose one by split \(--split\)"):
            load_dataset(tmp_path, split="test")

    def test_pictures_too_large(self, tmp_path, monkeypatch):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 8)
        (tmp_path / "a.png").write_bytes(encoded(GREY[0]))
        with pytest.raises(DataError, match="remove"):
            load_dataset(tmp_path)


class TestSources:
    def test_nothing_of_that_name(self):
        with pytest.raises(DataError, match=r"no file or folder nowhere.*digits, mnist"):
            load_dataset("nowhere")

    def test_a_file_of_another_type(self, tmp_path):
        (tmp_path / "a.txt").write_text("hello")
        with pytest.raises(DataError, match="no known type"):
            load_dataset(tmp_path / "a.txt")

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"split": "dev"}, "split"),
            ({"size": 0}, "size"),
            ({"size": (8, 8, 8)}, "size"),
            ({"channels": 2}, "channels"),
            ({"label": "x", "unlabelled": True}, "not both"),
            ({"classes": 3, "unlabelled": True}, "not both"),
            ({"split": "valid"}, "splits train and test"),
            ({"groups": "writer"}, "groups cannot be stated"),
            ({"value_range": (0, 255)}, "value_range cannot be stated"),
        ],
    )
    def test_options_that_make_no_sense(self, options, says):
        with pytest.raises(DataError, match=says):
            load_dataset("digits", **options)
