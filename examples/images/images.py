"""Format, width and height of an image, read from its first bytes and written beside it as NAME.json."""

from __future__ import annotations

import json
import os
import struct
from typing import BinaryIO

import fileq

# JPEG markers that start a frame, which contains the size. C4, C8 and CC are in that range but mean something else.
FRAMES = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def describe(job: fileq.JobView, context: fileq.Context) -> dict[str, object]:
    """Idempotent: writes the sidecar in one step, so a second run replaces it and no reader sees half of it."""
    with job.open() as file:
        try:
            form, width, height = read_size(file)
        except (struct.error, ValueError) as error:
            raise fileq.Permanent(f"not an image that can be read: {error}") from error
        size = os.fstat(file.fileno()).st_size
    facts = {"format": form, "width": width, "height": height, "bytes": size}
    sidecar = f"{job.path}.json"
    temporary = f"{sidecar}.{job.id}.tmp"
    with open(temporary, "w") as file_out:
        json.dump(facts, file_out)
    os.replace(temporary, sidecar)
    context.log.info("image.described", path=job.path, **facts)
    return facts


def read_size(file: BinaryIO) -> tuple[str, int, int]:
    head = file.read(24)
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return ("png", *struct.unpack(">II", head[16:24]))
    if head[:6] in (b"GIF87a", b"GIF89a"):
        return ("gif", *struct.unpack("<HH", head[6:10]))
    if head.startswith(b"\xff\xd8"):
        return ("jpeg", *_jpeg_size(file))
    raise ValueError("neither PNG, JPEG nor GIF")


def _jpeg_size(file: BinaryIO) -> tuple[int, int]:
    """Reads segment by segment until one contains the size."""
    file.seek(2)
    while True:
        marker, length = struct.unpack(">HH", file.read(4))
        if marker >> 8 != 0xFF:
            raise ValueError("damaged JPEG")
        if marker & 0xFF in FRAMES:
            height, width = struct.unpack(">xHH", file.read(5))
            return width, height
        file.seek(length - 2, os.SEEK_CUR)
