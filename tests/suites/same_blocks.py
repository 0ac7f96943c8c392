#!/usr/bin/env python3
"""Compares buffers of fio, which are in files: `same_blocks.py SOURCE DESTINATION`. Succeeds if each of the 8 blocks of
64 KiB of the destination is one of the source's, which are different."""
import sys

SIZE, COUNT = 65536, 8


def blocks(path):
    with open(path, "rb") as file:
        data = file.read()
    if len(data) != SIZE * COUNT:
        sys.exit(f"{path} has {len(data)} bytes, not {SIZE * COUNT}")
    return [data[start : start + SIZE] for start in range(0, len(data), SIZE)]


source, destination = (blocks(path) for path in sys.argv[1:3])
if len(set(source)) != COUNT:
    sys.exit(f"{sys.argv[1]}: blocks are equal")
wrong = [number for number, block in enumerate(destination) if block not in source]
if wrong:
    sys.exit(f"{sys.argv[2]}: the blocks {wrong} are not the source's")
