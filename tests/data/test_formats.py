from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path

import numpy as np
import pytest

from ffgb.data.formats import File, parse_cifar, parse_idx, read
from ffgb.errors import FFGBError

HERE = Path("some.file")


def idx(shape: tuple[int, ...], data: bytes, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape) + data


def describe(path: Path, content: bytes) -> File:
    return File(path.name, len(content), hashlib.sha256(content).hexdigest())


def test_idx_round_trip() -> None:
    array = np.random.default_rng(0).integers(0, 256, (3, 4, 5), np.uint8)
    np.testing.assert_array_equal(parse_idx(idx((3, 4, 5), array.tobytes()), HERE), array)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "no idx file: it does not start with two zero bytes"),
        (b"\x1f\x8b\x08\x08abcd", "no idx file: it does not start with two zero bytes"),
        (idx((2, 2), bytes(4), kind=0x0D), "idx data type 0x0d where unsigned bytes, 0x08, are expected"),
        (b"\0\0\x08\x03\0\0\0\x01", "its idx header ends before the sizes of its 3 dimensions"),
        (b"\0\0\x08\0", "its idx header ends before the sizes of its 0 dimensions"),
        (idx((60000, 28, 28), bytes(100)), "its header promises 60000 × 28 × 28 bytes of data and 100 follow"),
        (idx((1,) * 200, bytes(1)), "200 dimensions where at most 8 are expected"),
        (idx((2,), bytes(3)), "its header promises 2 bytes of data and 3 follow"),
        # 2^32 · 2^32 wraps around to 0 in 64 bits; sizes are multiplied without a limit.
        (idx((2**31, 2**31, 4), b""), f"its header promises {2**31} × {2**31} × 4 bytes of data and 0 follow"),
    ],
)
def test_bad_idx(content: bytes, reason: str) -> None:
    message = f"some.file is damaged ({reason}); delete it and fetch it again"
    with pytest.raises(FFGBError, match=f"^{re.escape(message)}$"):
        parse_idx(content, HERE)


def test_cifar_rows() -> None:
    content = bytes([7]) + bytes(1024) + b"\x01" * 1024 + b"\x02" * 1024 + bytes([9]) + bytes(3072)
    pixels, labels = parse_cifar(content, HERE)
    assert pixels.shape == (2, 3, 32, 32)
    assert labels.tolist() == [7, 9]
    assert pixels[0].reshape(3, -1).max(axis=1).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "0 bytes are no whole number of rows of 3,073"),
        (bytes(4000), "4,000 bytes are no whole number of rows of 3,073"),
        (bytes([10]) + bytes(3072), "it has a label 10 where 0 to 9 are expected"),
    ],
)
def test_bad_cifar(content: bytes, reason: str) -> None:
    with pytest.raises(FFGBError, match=re.escape(f"some.file is damaged ({reason}); delete it and fetch it again")):
        parse_cifar(content, HERE)


@pytest.mark.parametrize("name", ["a.bin", "a.gz"])
def test_read_checks_the_content(tmp_path: Path, name: str) -> None:
    content = np.random.default_rng(0).bytes(5000)
    path = tmp_path / name

    def write(data: bytes) -> None:
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)

    file = describe(path, content)
    write(content)
    assert read(path, file) == content
    write(content[:2500] + bytes([content[2500] ^ 1]) + content[2501:])
    with pytest.raises(
        FFGBError, match=rf"{re.escape(str(path))} is damaged \(its sha256 sum differs from the published"
    ):
        read(path, file)
    write(content[:-1])
    with pytest.raises(FFGBError, match=r"\(4,999 bytes of content where 5,000 are expected\); delete it and fetch it"):
        read(path, file)
    write(content + b"x")
    with pytest.raises(FFGBError, match=r"\(more than 5,000 bytes of content where 5,000 are expected\)"):
        read(path, file)


def test_the_way_a_gzip_is_packed_does_not_matter(tmp_path: Path) -> None:
    content = b"the same content" * 100
    path = tmp_path / "a.gz"
    for level in (1, 9):
        path.write_bytes(gzip.compress(content, level))
        assert read(path, describe(path, content)) == content


@pytest.mark.parametrize("damage", ["truncated", "no gzip", "flipped", "empty"])
def test_a_bad_gzip(tmp_path: Path, damage: str) -> None:
    content = np.random.default_rng(0).bytes(5000)
    packed = gzip.compress(content)
    path = tmp_path / "a.gz"
    path.write_bytes(
        {
            "truncated": packed[: len(packed) // 2],
            "no gzip": b"<html>404</html>",
            "flipped": packed[:-6] + bytes([packed[-6] ^ 1]) + packed[-5:],  # the CRC at the end
            "empty": b"",
        }[damage]
    )
    with pytest.raises(FFGBError, match=r"a\.gz is damaged .*; delete it and fetch it again$"):
        read(path, describe(path, content))


def test_a_gzip_bomb_costs_no_more_than_the_size_expected(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(50_000_000), 1))
    with pytest.raises(FFGBError, match="more than 10 bytes of content where 10 are expected"):
        read(path, File("a.gz", 10, ""))


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "a.bin").mkdir()
    with pytest.raises(
        FFGBError, match=r"a\.bin cannot be read \(Is a directory\); check the file and its permissions"
    ):
        read(tmp_path / "a.bin", File("a.bin", 1, ""))
