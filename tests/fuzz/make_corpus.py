#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of the fuzz targets into corpus/.

For the file readers: good files of every kind, and one of each kind of bad. For c_api and quantize,
whose bytes are choices: fixed pseudo-random bytes. Inputs that once broke something are kept beside
them under names that say what.
"""

import hashlib
import io
import json
import pathlib
import struct
import tarfile

CORPUS = pathlib.Path(__file__).parent / "corpus"


def npy(descr, shape, data, version=(1, 0), order="False", header=None):
    text = header or f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}"
    length_bytes = 2 if version[0] == 1 else 4
    pad = -(8 + length_bytes + len(text) + 1) % 64
    text = text + " " * pad + "\n"
    length = struct.pack("<H" if length_bytes == 2 else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + length + text.encode() + data


NPY = {
    "f32": npy("<f4", (1, 2, 2, 2), bytes(range(32))),
    "f16": npy("<f2", (1, 1, 2, 3), bytes(range(12))),
    "f64": npy("<f8", (2,), bytes(16)),
    "big_endian": npy(">f4", (2,), bytes(8)),
    "i8": npy("|i1", (1, 1, 2, 4), bytes(range(8))),
    "u8": npy("|u1", (8,), bytes(range(8))),
    "void1": npy("|V1", (1, 1, 1, 4), bytes(4)),
    "f1": npy("|f1", (4,), bytes(4)),
    "void2": npy("<V2", (2,), bytes(4)),
    "u2": npy("<u2", (2,), bytes(4)),
    "scalar": npy("<f4", (), bytes(4)),
    "empty": npy("<f4", (0, 3), b""),
    "fortran": npy("<f4", (2, 2), bytes(16), order="True"),
    "version2": npy("<f4", (1, 2), bytes(8), version=(2, 0)),
    "version3": npy("<f4", (1, 2), bytes(8), version=(3, 0)),
    "version9": npy("<f4", (1, 2), bytes(8), version=(9, 0)),
    "truncated": npy("<f4", (1, 2, 2, 2), bytes(31)),
    "trailing": npy("<f4", (2,), bytes(9)),
    "huge": npy("<f4", (2147483647, 2147483647, 2147483647), bytes(8)),
    "overflow": npy("<f4", (9223372036854775807, 2), bytes(8)),
    "too_many_digits": npy("<f4", "(99999999999999999999999999, )", bytes(8)),
    "negative": npy("<f4", (-1, 2), bytes(8)),
    "object": npy("|O", (2,), bytes(16)),
    "structured": npy("", (), b"", header="{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }"),
    "no_shape": npy("", (), b"", header="{'descr': '<f4', 'fortran_order': False, }"),
    "twice": npy("", (), bytes(4), header="{'shape': (1,), 'shape': (2,), 'descr': '<f4', 'fortran_order': False}"),
    "control": npy("<f\\x1b[31m4", (1,), bytes(4)).replace(b"\\x1b", b"\x1b"),
    "many_dims": npy("<f4", (1,) * 70, bytes(4)),
    "header_too_long": b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
    "magic_only": b"\x93NUMPY",
    "nothing": b"",
}


def safetensors(header, data=b"", length=None):
    text = header if isinstance(header, str) else json.dumps(header)
    return struct.pack("<Q", len(text) if length is None else length) + text.encode() + data


def entry(dtype, shape, begin, end):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


SAFETENSORS = {
    "one": safetensors({"q": entry("F32", [1, 1, 2, 2], 0, 16)}, bytes(range(16))),
    "metadata": safetensors({"__metadata__": {"format": "pt"}, "q": entry("F16", [1, 2], 0, 4)}, bytes(4)),
    "three": safetensors({"q": entry("BF16", [2], 0, 4), "k": entry("BF16", [2], 4, 8),
                          "v": entry("F8_E4M3", [4], 8, 12)}, bytes(range(12))),
    "e5m2": safetensors({"q": entry("F8_E5M2", [4], 0, 4)}, bytes(4)),
    "i8": safetensors({"q": entry("I8", [1, 1, 2, 2], 0, 4)}, bytes(4)),
    "u8": safetensors({"q": entry("U8", [4], 0, 4)}, bytes(4)),
    "i64": safetensors({"q": entry("I64", [1], 0, 8)}, bytes(8)),
    "scalar": safetensors({"q": entry("F32", [], 0, 4)}, bytes(4)),
    "empty": safetensors({"q": entry("F32", [0, 4], 0, 0)}),
    "no_tensor": safetensors({}),
    "padded": safetensors('{"q":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}   ', bytes(4)),
    "backwards": safetensors({"q": entry("F32", [1], 8, 4)}, bytes(8)),
    "outside": safetensors({"q": entry("F32", [1], 4, 8)}, bytes(4)),
    "wrong_size": safetensors({"q": entry("F32", [3], 0, 8)}, bytes(8)),
    "overlap": safetensors({"q": entry("F32", [2], 0, 8), "k": entry("F32", [2], 4, 12)}, bytes(12)),
    "huge_shape": safetensors({"q": entry("F32", [2**62, 2**62], 0, 4)}, bytes(4)),
    "huge_offset": safetensors({"q": entry("F32", [1], 2**64 - 4, 2**64)}, bytes(4)),
    "negative": safetensors({"q": entry("F32", [-1], 0, -4)}, bytes(4)),
    "float_shape": safetensors('{"q":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}}', bytes(4)),
    "shape_word": safetensors('{"q":{"dtype":"F32","shape":"all","data_offsets":[0,4]}}', bytes(4)),
    "twice": safetensors('{"q":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
                         '"q":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}', bytes(4)),
    "control": safetensors({"q\u001b[31m": entry("F\n32", [1], 0, 4)}, bytes(4)),
    "deep": safetensors("[" * 500 + "]" * 500),
    "not_json": safetensors("hello"),
    "not_utf8": struct.pack("<Q", 4) + b'{"\xff"',
    "length_max": safetensors("{}", length=2**64 - 1),
    "length_more": safetensors("{}", length=100),
    "short": b"\x00\x01",
    "nothing": b"",
}


def calibration(*entries, version=1):
    return json.dumps({"octavo_calibration": version, "entries": list(entries)}).encode()


def calibrated(name="k", format="e4m3", granularity="head", shape=(1, 2, 4, 8), amax=(1.5, 2.5), **more):
    return {"name": name, "format": format, "granularity": granularity, "block_rows": 2,
            "shape": list(shape), "tensors": 3, "amax": list(amax), **more}


CALIBRATION = {
    "head": calibration(calibrated()),
    "tensor": calibration(calibrated(granularity="tensor", amax=[0.0])),
    "block": calibration(calibrated(granularity="block", format="int8", amax=[1, 2, 3, 4])),
    "row": calibration(calibrated(granularity="row", format="e5m2", amax=[1.0] * 8)),
    "channel": calibration(calibrated(granularity="channel", format="sim8", amax=[1e-30] * 16)),
    "two": calibration(calibrated("q"), calibrated("k")),
    "same_name": calibration(calibrated(), calibrated()),
    "none": calibration(),
    "wrong_count": calibration(calibrated(amax=[1.0])),
    "negative_amax": calibration(calibrated(amax=[-1.0, 1.0])),
    "huge_amax": calibration(calibrated(amax=[1e300, 1.0])),
    "huge_shape": calibration(calibrated(shape=[2**62, 2**62, 1, 1])),
    "negative_shape": calibration(calibrated(shape=[-1, 2, 4, 8])),
    "rank": calibration(calibrated(shape=[1, 2])),
    "f32": calibration(calibrated(format="f32")),
    "bad_format": calibration(calibrated(format="e4\u001b[31mm3")),
    "bad_name": calibration(calibrated(name="")),
    "control_name": calibration(calibrated(name="a\nb")),
    "version": calibration(calibrated(), version=2),
    "block_rows": calibration(calibrated(block_rows=0)),
    "big_number": calibration(calibrated(tensors=2**64)),
    "float_number": calibration(calibrated(tensors=1.5)),
    "deep": b'{"entries":' + b"[" * 300 + b"]" * 300 + b"}",
    "not_json": b"{",
    "array": b"[1, 2]",
    "nothing": b"",
}


def bundle(files, gpu="GPU", folder="b", more=(), repair=1, extra_lines=()):
    """An archive with a manifest of the files, then members (name, type, content)."""
    lines = ["octavo_bundle: 1", 'commit: "1a"', f"gpu: {json.dumps(gpu)}", *extra_lines, "kernels:", "files:"]
    lines += ["  - " + json.dumps({"path": path, "sha256": hashlib.sha256(text).hexdigest()})
              for path, text in files.items()]
    members = [(f"{folder}/{path}", tarfile.REGTYPE, text)
               for path, text in {"manifest.yaml": "\n".join(lines).encode() + b"\n", **files}.items()]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name, kind, content in [*members, *more]:
            member = tarfile.TarInfo(name)
            member.type, member.size = kind, len(content)
            member.linkname = "/etc/passwd" if kind == tarfile.SYMTYPE else ""
            tar.addfile(member, io.BytesIO(content))
    # tarfile pads to 10,240 bytes, the mutating driver cuts at 4,096.
    return bytes([repair]) + packed.getvalue().rstrip(b"\0").ljust(512, b"\0") + bytes(512)


def padded(data):
    return data + bytes(-(len(data) - 1) % 512)


BUNDLE = {name: padded(data) for name, data in {
    "one": bundle({"a": b"x"}),
    "as_it_is": bundle({"a": b"x"}, repair=0),
    "two": bundle({"bench/a": b"x", "b": b""}),
    "empty": bundle({}),
    "path_as_gpu": bundle({"a": b"x"}, gpu="../.."),
    "two_folders": bundle({"a": b"x"}, more=[("c/a", tarfile.REGTYPE, b"y")]),
    "same_name": bundle({"a": b"x"}, more=[("b/a", tarfile.REGTYPE, b"y")]),
    "link": bundle({"a": b"x"}, more=[("b/l", tarfile.SYMTYPE, b"")]),
    "device": bundle({"a": b"x"}, more=[("b/d", tarfile.CHRTYPE, b"")]),
    "outside": bundle({"a": b"x"}, more=[("b/../../o", tarfile.REGTYPE, b"y")]),
    "absolute": bundle({"a": b"x"}, more=[("/o", tarfile.REGTYPE, b"y")]),
    "long_name": bundle({"n" * 120: b"x"}),
    "file_and_folder": bundle({"a": b"x", "a/b": b"y"}),
    "key_twice": bundle({"a": b"x"}, extra_lines=['gpu: "other"']),
    "no_folder": bundle({"a": b"x"}, folder="."),
    "cut": bundle({"a": b"x"})[:1200],
}.items()}


def choices(target):
    """Seeds for a target that reads choices: the same bytes each time."""
    files = {"zeros": bytes(16)}
    for i in range(32):
        seed = f"{target} {i}".encode()
        files[f"random_{i:02}"] = b"".join(hashlib.sha256(seed + bytes([j])).digest()
                                           for j in range(5))
    return files


for folder, files in (("npy", NPY), ("safetensors", SAFETENSORS), ("calibration", CALIBRATION),
                      ("bundle", BUNDLE), ("cache", choices("cache")), ("c_api", choices("c_api")),
                      ("quantize", choices("quantize"))):
    (CORPUS / folder).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (CORPUS / folder / name).write_bytes(content)
