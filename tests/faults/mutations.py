"""Files that are nearly valid: bytes and fields of a valid one, changed at random."""

import copy
import gzip
import io
import json
import math
import struct
import zipfile
import zlib
from random import Random
from typing import Any

from ddm.compute.files import add_checksum

INTEGERS = (0, 1, -1, 2**7, 2**8 - 1, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**60, 2**63 - 1, 2**64 - 1)

VALUES = (
    *(None, True, False, "", "a", "\ud800", "../../../etc/passwd", "/etc/passwd", "a\0b", "%s{}", "x" * 5000),
    *(float("nan"), float("inf"), -float("inf"), 1e308, -0.0, 0.5, 10**400, -(10**30)),
    *([], {}, [[]], [None], {"": None}, [1, 2], ["a", "a"], [1e999], [0] * 300),
    *INTEGERS,
)

TOKENS = (b"NaN", b"-Infinity", b"1e999", b"[" * 3000, b'{"a":' * 3000, b"\\ud800", b"\0", b"\xff\xfe", b"9" * 5000)


def changed_bytes(content: bytes, random: Random) -> bytes:
    """Bits flipped, parts cut, moved, doubled or overwritten by numbers that are wrong in many formats."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        content = random.choice(_CHANGES)(content, random)
    return content


def _flipped(content: bytes, random: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(random.randint(1, 8) if content else 0):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _cut(content: bytes, random: Random) -> bytes:
    return content[: random.randint(0, len(content))]


def _without(content: bytes, random: Random) -> bytes:
    start, stop = sorted((random.randint(0, len(content)), random.randint(0, len(content))))
    return content[:start] + content[stop:]


def _doubled(content: bytes, random: Random) -> bytes:
    start = random.randint(0, len(content))
    part = content[start : start + random.choice((1, 4, 16, 256))]
    place = random.randint(0, len(content))
    return content[:place] + part * random.choice((1, 2, 50)) + content[place:]


def _numbered(content: bytes, random: Random) -> bytes:
    size, order = random.choice((1, 2, 4, 8)), random.choice(("little", "big"))
    number = (random.choice(INTEGERS) % 256**size).to_bytes(size, order)
    place = random.randint(0, max(0, len(content) - size))
    return content[:place] + number + content[place + size :]


def _inserted(content: bytes, random: Random) -> bytes:
    place = random.randint(0, len(content))
    return content[:place] + random.choice((random.randbytes(4), random.choice(TOKENS))) + content[place:]


_CHANGES = (_flipped, _flipped, _cut, _without, _doubled, _numbered, _inserted)


def changed_value(value: Any, random: Random) -> Any:
    """JSON with a value somewhere in it replaced, taken away or moved elsewhere, in place."""
    places = list(_places(value))
    for _ in range(random.choice((1, 1, 2))):
        holder, key = random.choice(places)
        how = random.random()
        try:
            if how < 0.7:
                holder[key] = copy.copy(random.choice(VALUES))
            elif how < 0.85:
                del holder[key]
            else:
                other, name = random.choice(places)
                holder[key] = copy.deepcopy(other[name])
        except (KeyError, IndexError):
            continue  # taken away by the change before
    return value


def _places(value: Any) -> Any:
    """Every place in lists and tables, as what holds it and where."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from _places(value[key])


def changed_json(content: bytes, random: Random) -> bytes:
    if random.random() < 0.4:
        return changed_bytes(content, random)
    return json.dumps(changed_value(json.loads(content), random)).encode()


def changed_sealed(content: bytes, random: Random) -> bytes:
    """JSON with a checksum, which is made right again half of the time."""
    changed = changed_json(content, random)
    if random.random() < 0.5:
        return changed
    try:
        table = json.loads(changed)
        return json.dumps(add_checksum({key: table[key] for key in table if key != "checksum"})).encode()
    except (ValueError, TypeError, KeyError, RecursionError):  # no JSON any more, or no table
        return changed


def changed_safetensors(content: bytes, random: Random) -> bytes:
    """The header's values, our own metadata inside it, which tensor is which, the values, or any bytes."""
    how = random.random()
    if how < 0.25:
        return changed_bytes(content, random)
    length = int.from_bytes(content[:8], "little")
    header, body = json.loads(content[8 : 8 + length]), content[8 + length :]
    if how < 0.45:
        header = changed_value(header, random)
    elif how < 0.65:
        _change_tensors(header, random)
    elif how < 0.9:
        metadata = json.loads(header["__metadata__"]["ddm"])
        header["__metadata__"]["ddm"] = json.dumps(changed_value(metadata, random))
    else:
        changed = changed_bytes(body, random)
        body = changed + body[len(changed) :] if random.random() < 0.8 else changed
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + body


def _change_tensors(header: dict[str, Any], random: Random) -> None:
    """Two tensors change places, or one has another shape or type, in a file that stays valid."""
    names = [name for name in header if name != "__metadata__"]
    one, other = random.choice(names), random.choice(names)
    shape, kind = header[one]["shape"], header[one]["dtype"]
    how = random.randrange(3)
    if how == 0:
        header[one], header[other] = header[other], header[one]
    elif how == 1:
        header[one]["shape"] = random.choice(([math.prod(shape)], [1, *shape], [*shape, 1], shape[::-1]))
    else:
        header[one]["dtype"] = {"F32": "I32", "I64": "F64"}.get(kind, kind)


def changed_npz(content: bytes, random: Random) -> bytes:
    """An array inside the archive, with the archive's own checksum made right again; or any bytes."""
    if random.random() < 0.3:
        return changed_bytes(content, random)
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as archive, zipfile.ZipFile(file, "w") as changed:
        chosen = random.choice(archive.namelist())
        for name in archive.namelist():
            array = archive.read(name)
            if name == chosen:
                array = (
                    changed_bytes(array[:128], random) + array[128:] if random.random() < 0.7 else _cut(array, random)
                )
            changed.writestr(name, array)
    return file.getvalue()


def changed_gzip(content: bytes, random: Random) -> bytes:
    if random.random() < 0.4:
        return changed_bytes(content, random)
    return gzip.compress(changed_bytes(gzip.decompress(content), random), 1)


def changed_image(content: bytes, random: Random) -> bytes:
    """Any bytes, and for PNG a chunk with its checksum made right again."""
    if not content.startswith(b"\x89PNG") or random.random() < 0.4:
        return changed_bytes(content, random)
    chunks, place = [], 8
    while place + 8 <= len(content):
        (length,) = struct.unpack(">I", content[place : place + 4])
        chunks.append((content[place + 4 : place + 8], content[place + 8 : place + 8 + length]))
        place += 12 + length
    which = random.randrange(len(chunks))
    kind, data = chunks[which]
    if kind == b"IDAT" and random.random() < 0.5:
        data = zlib.compress(changed_bytes(zlib.decompress(data), random), 1)
    else:
        data = changed_bytes(data, random)
    chunks[which] = kind, data
    return content[:8] + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
