from __future__ import annotations

import json
import os
import struct
from pathlib import Path

import pytest
from images import describe

import fileq
from fileq.testing import run

PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sIIBBBBB", 13, b"IHDR", 640, 480, 8, 2, 0, 0, 0) + b"rest"
GIF = b"GIF89a" + struct.pack("<HH", 12, 7) + b"rest" * 5
JPEG = (
    b"\xff\xd8\xff\xe0" + struct.pack(">H", 16) + b"JFIF\0" + bytes(9)
    + b"\xff\xc4" + struct.pack(">H", 5) + bytes(3)
    + b"\xff\xc2" + struct.pack(">HBHHB", 11, 8, 333, 1024, 1) + bytes(3)
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "form", "size"),
    [("a.png", PNG, "png", (640, 480)), ("b.gif", GIF, "gif", (12, 7)), ("c \n.jpg", JPEG, "jpeg", (1024, 333))],
)
def test_the_size_of_an_image_is_read_and_written_beside_it(
    name: str, content: bytes, form: str, size: tuple[int, int], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    facts = {"format": form, "width": size[0], "height": size[1], "bytes": len(content)}
    assert run(describe, tmp_path / name) == facts
    assert run(describe, tmp_path / name) == facts, "a repetition does no harm"
    assert json.loads((tmp_path / f"{name}.json").read_text()) == facts
    assert sorted(os.listdir(tmp_path)) == [name, f"{name}.json"]


@pytest.mark.parametrize("content", [b"", b"text", PNG[:20], JPEG[:30], b"\xff\xd8" + b"junk" * 9, b"GIF89a\0"])
def test_a_file_that_is_not_an_image_dies_at_once_and_leaves_nothing(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(content)
    with pytest.raises(fileq.Permanent, match="not an image"):
        run(describe, tmp_path / "a.png")
    assert os.listdir(tmp_path) == ["a.png"]
