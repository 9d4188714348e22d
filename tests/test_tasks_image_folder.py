"""Tasks of image folders: by class, by client and class, and with FedScale's mapping."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedtide
from clients.device.local_data import DataSpec, read
from fedtide.base.images import opened, pixels_of, stacked
from fedtide.config import Settings
from fedtide.federation import Federation

RNG = np.random.default_rng(0)


def data_of(task: str, clients: int, **more: Any) -> Any:
    return Federation.of(Settings(task=task, num_clients=clients, **more)).data


def save(file: Path, pixels: np.ndarray) -> np.ndarray:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file)
    return pixels


def grey(size: int = 4) -> np.ndarray:
    return RNG.integers(0, 256, (size, size), np.uint8)


@pytest.fixture
def by_client(tmp_path: Path) -> tuple[Path, dict[str, np.ndarray]]:
    """Three clients of whom each lacks a class; and their images."""
    found = {}
    for split, count in (("train", 4), ("test", 2)):
        for client, classes in {"Ann": "cd", "Bob": "de", "Zoë": "ce"}.items():
            for label in classes:
                for number in range(count):
                    name = f"{split}/{client}/{label}/{number}.png"
                    found[name] = save(tmp_path / name, grey())
    return tmp_path, found


def test_clients_have_their_images_and_their_division(by_client: Any) -> None:
    folder, images = by_client
    data = data_of(f"folder:{folder},normalize=false", 3)
    assert data.client_names == ("Ann", "Bob", "Zoë")
    assert (data.num_outputs, data.input_shape) == (3, (1, 4, 4))
    for client, name in enumerate(data.client_names):
        x, y = data.train_set(np.array([client]))
        own = {file: pixels for file, pixels in images.items() if file.startswith(f"train/{name}/")}
        np.testing.assert_allclose(x[:, 0], np.stack([*own.values()]) / 255, rtol=1e-6)
        assert y.tolist() == ["cde".index(file.split("/")[2]) for file in own]
    assert len(data.test[1]) == 12
    others = [pixels for file, pixels in images.items() if file.startswith(("train/Bob/", "train/Zoë/"))]
    fewer = data_of(f"folder:{folder}", 3, arrivals="0=never")
    np.testing.assert_allclose(fewer.derive.mean[0], np.mean(others) / 255, rtol=1e-6)
    (name,) = (one := data_of(f"folder:{folder}", 1)).client_names
    assert len(one.test[1]) == 4  # those of the client that was drawn
    assert one.num_outputs == 3
    assert name in data.client_names


def test_classes_are_divided_by_a_partition(tmp_path: Path) -> None:
    pixels = [save(tmp_path / label / f"{i}.png", grey()) for label in ("cat", "dog") for i in range(10)]
    shutil.copy(tmp_path / "cat" / "0.png", tmp_path / "cat" / ".hidden")
    data = data_of(fedtide.Task.from_folder(tmp_path), 2)
    assert (data.sizes.sum(), len(data.test[1]), data.client_names) == (16, 4, ())
    x, y = data.train_set(np.arange(2))
    assert {*y.tolist()} <= {0, 1}
    assert abs(x.mean()) < 1e-6  # standardised
    assert x.std() == pytest.approx(1, abs=1e-5)
    known = {tuple(image.ravel()) for image in pixels[10:]}
    levels = np.rint((x * data.preprocessing.pixels.deviation[0] + data.preprocessing.pixels.mean[0]) * 255)
    assert all(
        (tuple(image.ravel()) in known) == (label == 1) for image, label in zip(levels, y, strict=True)
    )
    # Boards that have such a folder number its classes alike.
    there = read(DataSpec(str(tmp_path)), data.preprocessing.to_json())
    assert there.num_classes == data.num_outputs
    of_board = {(image.tobytes(), label) for image, label in zip(there.x, there.y.tolist(), strict=True)}
    assert {(image.tobytes(), label) for image, label in zip(x, y.tolist(), strict=True)} <= of_board


def test_photographs_are_turned_as_the_camera_was_held(tmp_path: Path) -> None:
    """Phones save the sensor's pixels, and in EXIF how to turn them; damaged EXIF data say nothing."""
    pixels, exif = grey(), Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    for label in "ab":
        for number, block in enumerate((b"", exif.tobytes(), b"Exif\0\0MM")):
            (tmp_path / label).mkdir(exist_ok=True)
            Image.fromarray(pixels).save(tmp_path / label / f"{number}.PNG", exif=block)
    data = data_of(f"folder:{tmp_path},normalize=false", 1)
    found = [
        image[0] for image in np.rint(np.concatenate([data.train_set(np.array([0]))[0], data.test[0]]) * 255)
    ]
    assert sum(np.array_equal(image, pixels) for image in found) == 4
    assert sum(np.array_equal(image, np.rot90(pixels, -1)) for image in found) == 2


def test_images_of_16_bits_are_turned_too(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    file = tmp_path / "a.png"
    Image.fromarray(np.arange(12, dtype=np.uint16).reshape(3, 4) * 1000).save(file, exif=exif)
    with opened(file) as image:
        (pixels,) = pixels_of(image)
    np.testing.assert_array_equal(pixels, np.rot90(np.arange(12).reshape(3, 4) * 1000, -1))


@pytest.mark.parametrize("colours", ["1.png", "0.png"])
def test_grey_images_among_those_in_colour(colours: str, tmp_path: Path) -> None:
    """Whichever comes first."""
    red = np.zeros((4, 4, 3), np.uint8)
    red[..., 0], pixels = 200, grey()
    save(tmp_path / colours, red)
    save(tmp_path / ("0.png" if colours == "1.png" else "1.png"), pixels)
    files = sorted(tmp_path.iterdir())
    found = stacked((Image.open(file) for file in files), 2, 0, "all", str)
    in_colour, turned = (found[1], found[0])[:: 1 if colours == "1.png" else -1]
    np.testing.assert_array_equal(in_colour, red.transpose(2, 0, 1))
    np.testing.assert_array_equal(turned, np.stack([pixels] * 3))


def test_fedscale_maps_files_to_clients(tmp_path: Path) -> None:
    for split, rows in (("train", [(7, "a", 2), (7, "b", 0), (12, "c", 2)]), ("test", [(99, "d", 0)])):
        lines = ["client_id,sample_path,label_name,label_id"]
        for client, name, label in rows:
            save(tmp_path / split / f"{name}.jpg", grey())
            lines.append(f"{client},{name}.jpg,class {label},{label}")
        (tmp_path / "client_data_mapping").mkdir(exist_ok=True)
        (tmp_path / "client_data_mapping" / f"{split}.csv").write_text("\n".join(lines))
    data = data_of(f"folder:{tmp_path}", 2)
    assert data.client_names == ("7", "12")
    assert (data.sizes.tolist(), data.num_outputs) == ([2, 1], 3)
    assert data.train_set(np.array([0]))[1].tolist() == [2, 0]
    assert data.test[1].tolist() == [0]
    (tmp_path / "train" / "b.jpg").unlink()
    with pytest.raises(ValueError, match=r"task folder: .*b\.jpg: No such file"):
        data_of(f"folder:{tmp_path}", 2)
    train = tmp_path / "client_data_mapping" / "train.csv"
    train.write_text("client_id,sample_path,label_id\n1,../secret.png,2\n2,a.jpg,0")
    with pytest.raises(ValueError, match=r"train\.csv: '\.\./secret\.png' is not in the folder"):
        data_of(f"folder:{tmp_path}", 2)
    (tmp_path / "client_data_mapping" / "train.csv").write_text("client_id,path\n1,a")
    with pytest.raises(ValueError, match=r"train\.csv: it has no column sample_path"):
        data_of(f"folder:{tmp_path}", 2)


def test_it_trains(by_client: Any, tmp_path: Path) -> None:
    few = {"num_clients": 3, "num_rounds": 2, "local_steps": 2, "report": "none", "progress": False}
    task = fedtide.Task.from_folder(by_client[0], size=8)
    run = fedtide.run(task=task, model="lenet", engine="inline", run_dir=tmp_path / "runs", **few)
    assert run.client_names == ("Ann", "Bob", "Zoë")
    assert run.metrics.loss.notna().all()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("cat/notes.txt", r"cat/notes\.txt is not an image; take it out of the folder"),
        ("cat/big.png", r"images of 4x4 and 6x6 pixels; set size="),
        ("cat/deeper.png", r"deeper\.png: grey \(8 bits\) and grey \(16 bits\) images are mixed"),
        ("dog/cut.png", r"dog/cut\.png: image file is truncated"),
        ("cat/broken.png", r"broken\.png: it is not an image that can be read"),
        ("./lost.PNG", r"lost\.PNG is not in the folder of a class"),
        (
            "zed/Ann/more/deep.png",
            r"zed/Ann/more is one folder too deep: images lie in CLASS/ or CLIENT/CLASS/",
        ),
        ("zed/Ann/deep.png", r"lies in the folder of a class, and others in one of a client and a class"),
        ("nonesuch", "nonesuch: No such file or directory"),
        ("empty", "empty has no images in CLASS/ or CLIENT/CLASS/"),
    ],
)
def test_what_is_refused(change: str, says: str, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    for label in ("cat", "dog"):
        for number in range(3):
            save(folder / label / f"{number}.png", grey())
    if "/" in change:
        (folder / change).parent.mkdir(parents=True, exist_ok=True)
        (folder / change).write_bytes(b"no image")
        if not change.endswith(("notes.txt", "broken.png")):
            size = 6 if "big" in change else 40 if "cut" in change else 4
            save(folder / change, grey(size).astype(np.uint16) if "deeper" in change else grey(size))
        if "cut" in change:
            (folder / change).write_bytes((folder / change).read_bytes()[:-30])
            for number in range(3):
                save(folder / "dog" / f"{number}.png", grey(40))
                save(folder / "cat" / f"{number}.png", grey(40))
    elif change == "empty":
        (tmp_path / "empty").mkdir()
    given = tmp_path / change if "/" not in change else folder
    with pytest.raises(ValueError, match=f"^task folder: .*{says}"):
        data_of(f"folder:{given}", 2)


def test_a_size_that_no_memory_holds_is_refused_before_an_image_is_resized(tmp_path: Path) -> None:
    for label in "ab":
        save(tmp_path / label / "0.png", grey())
    with pytest.raises(ValueError, match="2 images of 100000x100000 pixels are too many; set another size="):
        data_of(f"folder:{tmp_path},size=100000", 1)


def test_a_path_with_a_comma_is_refused(tmp_path: Path) -> None:
    with pytest.raises(fedtide.SettingsError, match="a comma ends it in `--task`; rename the folder"):
        fedtide.Task.from_folder(tmp_path / "a,b")
