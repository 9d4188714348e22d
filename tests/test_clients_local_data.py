"""A device's own examples: what is read from files, how classes are numbered, and what is refused."""

import re
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, RecordDict
from flwr.common import FitIns, ndarrays_to_parameters
from PIL import Image

from clients.app import client_fn
from clients.device import local_data
from clients.device.local_data import DataSpec, read
from fedtide.base.preprocessing import Preprocessing
from fedtide.tasks.images import Pixels

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (6, 8, 8), np.uint8)
CLASSES = [1, 0, 1, 1, 0, 1]


def write_npz(path: Path, **arrays: np.ndarray) -> str:
    np.savez_compressed(path, **{"x": PIXELS[:, None] / 255, "y": np.array(CLASSES), **arrays})
    return str(path)


def write_csv(path: Path, *rows: str, header: str = "a,b,label") -> str:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return str(path)


def write_folder(path: Path, names: tuple[str, ...] = ("cat", "dog")) -> str:
    for i, number in enumerate(CLASSES):
        folder = path / names[number]
        folder.mkdir(parents=True, exist_ok=True)
        if i == 5:
            np.savez(folder / "one.npz", x=PIXELS[i][None, None].astype(np.float32) / np.float32(255))
        else:
            Image.fromarray(PIXELS[i]).save(folder / f"{i}.png")
    (path / ".hidden").mkdir()
    (path / names[0] / ".DS_Store").touch()
    return str(path)


def test_all_forms_give_the_same_examples(tmp_path: Path) -> None:
    npz = read(DataSpec(write_npz(tmp_path / "own.npz")))
    assert (npz.x.shape, npz.x.dtype, npz.y.dtype) == ((6, 1, 8, 8), np.float32, np.int64)
    assert npz.y.tolist() == CLASSES
    assert npz.num_classes is None
    header = ",".join([*(f"p{i}" for i in range(64)), "class"])
    rows = [",".join(map(repr, [*row.ravel().tolist(), c])) for row, c in zip(npz.x, CLASSES, strict=True)]
    csv = read(DataSpec(write_csv(tmp_path / "own.csv", *rows, header=header)))
    np.testing.assert_allclose(csv.x, npz.x.reshape(6, 64))
    assert csv.y.tolist() == CLASSES
    folder = read(DataSpec(write_folder(tmp_path / "images")))
    assert folder.num_classes == 2
    assert folder.y.tolist() == [0, 0, 1, 1, 1, 1]
    np.testing.assert_allclose(folder.x, npz.x[np.argsort(CLASSES, kind="stable")], rtol=1e-6)


def test_images_are_standardised_as_those_of_the_task(tmp_path: Path) -> None:
    pixels = Pixels.of(PIXELS[:, None])
    done = Preprocessing(pixels=pixels).to_json()
    write_folder(tmp_path / "images")
    (tmp_path / "images" / "dog" / "one.npz").unlink()  # whose arrays are used as they are
    rows = np.argsort(CLASSES[:5], kind="stable")
    found = read(DataSpec(str(tmp_path / "images")), done)
    np.testing.assert_array_equal(found.x, pixels((PIXELS[rows, None], rows))[0])
    Image.fromarray(COLOUR).save(tmp_path / "images" / "cat" / "1.png")
    with pytest.raises(ValueError, match=r"cat/1\.png: 3 channels where the run's images have 1"):
        read(DataSpec(str(tmp_path / "images")), done)


def test_a_fast_copy_is_read_until_the_files_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images, rows = write_folder(tmp_path / "images"), write_csv(tmp_path / "own.csv", "1,5,0")
    of_images = DataSpec(images, fast_copy=str(tmp_path / "images.npz"))
    of_rows = DataSpec(rows, fast_copy=str(tmp_path / "rows.npz"))
    slow = [read(spec) for spec in (of_images, of_rows)]
    with monkeypatch.context() as patched:
        patched.setattr(local_data, "_read", None)  # is not called
        for spec, data in zip((of_images, of_rows), slow, strict=True):
            fast = read(spec)
            np.testing.assert_array_equal(fast.x, data.x)
            assert (fast.y.tolist(), fast.num_classes) == (data.y.tolist(), data.num_classes)
    with open(rows, "a") as file:  # as a program that measures
        file.write("2,6,1\n")
    assert read(of_rows).y.tolist() == [0, 1]
    Image.fromarray(PIXELS[0]).save(Path(images) / "dog" / "new.png")
    assert len(read(of_images).y) == len(slow[0].y) + 1
    (tmp_path / "rows.npz").write_bytes(b"damaged")
    assert read(of_rows).y.tolist() == [0, 1]
    assert read(of_rows._replace(fast_copy=str(tmp_path / "none" / "rows.npz"))).y.tolist() == [0, 1]


GREY16 = (1000 * np.arange(60, dtype=np.uint16)).reshape(6, 10)
COLOUR = np.stack([PIXELS[0], PIXELS[1], PIXELS[2]], -1)
PALETTE = Image.fromarray(PIXELS[0]).convert("P")
IMAGES = {
    "16.png": (Image.fromarray(GREY16), GREY16[None] / 65535),
    "16.tif": (Image.fromarray(GREY16), GREY16[None] / 65535),
    "grey.png": (Image.fromarray(PIXELS[0]).convert("LA"), PIXELS[:1] / 255),
    "grey.gif": (PALETTE, PIXELS[:1] / 255),
    "palette.png": (PALETTE, PIXELS[:1] / 255),
    "black.png": (Image.fromarray(PIXELS[0] > 99), (PIXELS[:1] > 99) * 1.0),
    "colour.png": (Image.fromarray(COLOUR), COLOUR.transpose(2, 0, 1) / 255),
    "clear.png": (Image.fromarray(COLOUR).convert("RGBA"), COLOUR.transpose(2, 0, 1) / 255),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images_of_any_mode_keep_all_of_their_levels(tmp_path: Path, name: str) -> None:
    image, expected = IMAGES[name]
    (tmp_path / "0").mkdir()
    image.save(tmp_path / "0" / name)
    np.testing.assert_allclose(read(DataSpec(str(tmp_path))).x, expected[None], rtol=1e-6)


@pytest.mark.parametrize("pixels", [np.float32(GREY16), np.int32(GREY16)])
def test_pixels_of_an_unknown_range_are_refused(tmp_path: Path, pixels: np.ndarray) -> None:
    (tmp_path / "0").mkdir()
    Image.fromarray(pixels).save(tmp_path / "0" / "a.tif")
    with pytest.raises(ValueError, match=r"a\.tif: the range of pixels of mode [FI] is not known; save it"):
        read(DataSpec(str(tmp_path)))


def test_classes_have_the_same_numbers_on_all_devices(tmp_path: Path) -> None:
    """By their own numbers, by the names that are given, or by all names in order."""
    numbered = read(DataSpec(write_folder(tmp_path / "numbered", ("10", "9"))))
    assert numbered.y.tolist() == [10, 10, 9, 9, 9, 9]
    assert numbered.num_classes is None
    named = read(DataSpec(str(tmp_path / "numbered"), classes="9+x+10"))
    assert named.y.tolist() == [2, 2, 0, 0, 0, 0]
    assert named.num_classes == 3
    path = write_csv(tmp_path / "named.csv", "1,dog,2", "3,cat,4", header="a,label,b")
    table = read(DataSpec(path, "label", "dog+cat"))
    assert (table.y.tolist(), table.x.tolist()) == ([0, 1], [[1, 2], [3, 4]])
    sheet = write_csv(tmp_path / "sheet.csv", "1,5;dog;2;", "3;cat;4,25;", ";;;", "", header="a;label;b;")
    table = read(DataSpec(sheet, "label", "dog+cat"))
    assert (table.y.tolist(), table.x.tolist()) == ([0, 1], [[1.5, 2], [3, 4.25]])
    with pytest.raises(ValueError, match="2 classes where the model of the run has 3 outputs; name all"):
        table.check(2, 3)
    with pytest.raises(ValueError, match=r"class 10 where the model of the run has 10 outputs, 0\.\.9"):
        numbered.check(64, 10)


def other_size(path: Path) -> str:
    write_folder(path)
    Image.fromarray(PIXELS[0, :4]).save(path / "dog" / "9.png")
    return str(path)


def bomb(path: Path) -> str:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.npy", "w") as member:
        member.write(bytes(2 << 20))
    return str(path)


def bzip2(path: Path) -> str:
    """A few kilobytes of it can inflate to gigabytes at once."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x.npy", bytes(100))
    return str(path)


def touched(path: Path, name: str, content: bytes = b"") -> str:
    """A folder of classes with a file that does not belong there."""
    write_folder(path)
    (path / "dog" / name).write_bytes(content)
    return str(path)


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "none.npz": (lambda p: p, "data .*none.npz: No such file"),
    "own.txt": (write_csv, "neither a folder of classes nor an .npz or .csv file"),
    "torn.npz": (lambda p: p.write_bytes(b"PK"), "torn.npz: File is not a zip file"),
    "bomb.npz": (bomb, "bomb.npz: its arrays are larger than 1 MiB"),
    "bzip2.npz": (bzip2, "bzip2.npz: it is compressed in another way than NumPy does"),
    "objects.npz": (lambda p: write_npz(p, x=np.array([{}] * 6, object)), "Object arrays cannot be loaded"),
    "no-y.npz": (lambda p: np.savez(p, x=PIXELS), "it has no array 'y'; x has the"),
    "short.npz": (lambda p: write_npz(p, y=np.zeros(5, int)), r"x has shape .* and y \(5,\)"),
    "half.npz": (lambda p: write_npz(p, y=np.full(6, 0.5)), "it must have class numbers"),
    "minus.npz": (lambda p: write_npz(p, y=np.full(6, -1)), "y has classes from -1 to -1"),
    "nan.npz": (lambda p: write_npz(p, x=np.array([0, 0, np.nan, 0, 0, 0])), "example 2 of x"),
    "word.csv": (lambda p: write_csv(p, "1,2,0", "1,x,0"), "line 3, column 'b': 'x' is not a finite"),
    "inf.csv": (lambda p: write_csv(p, "1,inf,0"), "line 2, column 'b': 'inf' is not a finite"),
    "long.csv": (lambda p: write_csv(p, "1,0,2,3"), "line 2: 4 values for 3 columns"),
    "last.csv": (lambda p: write_csv(p, "1,0,dog"), "column 'label': 'dog' is not the number of a class"),
    "no-target.csv": (lambda p: write_csv(p, "1,2,0"), "no column 'class' .*: a, b, label"),
    "empty.csv": (write_csv, "there are no rows below the header"),
    "fox": (lambda p: write_folder(p, ("cat", "fox")), "data .*fox: 'fox' is not one of the classes cat"),
    "damaged": (lambda p: touched(p, "0.png", b"\x89PNG no"), "dog/0.png: it is not an image that can be"),
    "sizes": (other_size, r"dog/9.png: an example has shape \(1, 4, 8\), and the first one \(1, 8"),
    "twice": (lambda p: write_folder(p, ("0", "00")), "folders '0' and '00' are of one class; move"),
    "notes": (lambda p: touched(p, "notes.txt"), "notes.txt: it is neither an image nor an .npz file"),
    "flat": (lambda p: p.mkdir(), "it has no subfolders; there must be one for each"),
}
SPECS = {"no-target.csv": DataSpec("", "class"), "fox": DataSpec("", "", "cat+dog")}


@pytest.mark.parametrize("name", BAD)
def test_a_line_says_what_is_wrong_and_where(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_data, "MAX_BYTES", 1 << 20)
    make, message = BAD[name]
    make(tmp_path / name)
    with pytest.raises(ValueError, match=message) as raised:
        read(SPECS.get(name, DataSpec(""))._replace(path=str(tmp_path / name)))
    assert re.fullmatch("data .+", str(raised.value))  # one line


def test_any_model_trains_on_own_data_that_fit_it(tmp_path: Path) -> None:
    """Here LeNet, on images; its tensors say how many classes there are."""
    node = {"client-id": 0, "data": write_folder(tmp_path / "images"), "classes": "cat+dog+fox"}
    run = {"num-clients": 2, "model": "lenet"}
    shapes = [(6, 1, 5, 5), (6,), (16, 6, 5, 5), (16,), (120, 64), (120,), (84, 120), (84,), (3, 84), (3,)]
    config = {"round": 1, "local-steps": 3, "batch-size": 2, "learning-rate": 0.1, "model-arrays": 10}

    def fit(shapes: list[tuple[int, ...]], **settings: object) -> object:
        weights = [RNG.normal(0, 0.1, shape).astype(np.float32) for shape in shapes]
        client = client_fn(Context(1, 0, node, RecordDict(), {**run, **settings}))
        return client.fit(FitIns(ndarrays_to_parameters(weights), {**config, "model-arrays": len(shapes)}))

    reply = fit(shapes)
    assert reply.metrics["steps"] == 3
    assert reply.num_examples == 6
    with pytest.raises(ValueError, match="3 classes where the model of the run has 4 outputs"):
        fit([*shapes[:-2], (4, 84), (4,)])
    with pytest.raises(
        ValueError, match=r"shape \(1, 8, 8\) do not fit the run's model lenet, whose tensors are"
    ):
        fit([*shapes[:4], (120, 400), *shapes[5:]])
    with pytest.raises(ValueError, match="do not fit the run's model logistic"):
        fit([(3, 60), (3,)], model="logistic")
