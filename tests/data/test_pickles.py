import builtins
import contextlib
import copyreg
import os
import pickle
import struct
import subprocess
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from published_files import Run, cifar_batch, python2_pickle
from refusals import refused

from ddm.compute import memory
from ddm.data.readers.pickles import _STAND_INS, read_pickle
from ddm.errors import InputError


def read(folder, content):
    path = folder / "data_batch_1"
    path.write_bytes(content)
    return read_pickle(path)


def string(text):
    return b"X" + struct.pack("<I", len(text)) + text.encode()


def calls(marker):
    """Objects whose pickles make a folder at ``marker`` when a plain unpickler reads them."""
    path = str(marker)
    return {
        "os": Run(os.mkdir, path),
        "system": Run(os.system, f"mkdir {path}"),
        "eval": Run(builtins.eval, f"__import__('os').mkdir({path!r})"),
        "exec": Run(builtins.exec, f"import os; os.mkdir({path!r})"),
        "subprocess": Run(subprocess.check_call, ["mkdir", path]),
        "nested": {"data": [{"a": (1, [Run(os.mkdir, path)])}]},
        "as a key": {Run(os.mkdir, path): 1},
        "inside an array": {"data": np.array([[Run(os.mkdir, path)]], dtype=object)},
        "getattr": Run(builtins.getattr, Run(builtins.__import__, "os"), "mkdir"),
        "numpy function": Run(np.save, path, np.zeros(1)),
        "numpy memmap": Run(np.memmap, path, "uint8", "w+", 0, (1,)),
    }


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
@pytest.mark.parametrize("payload", calls(""))
def test_a_pickle_cannot_call_functions(tmp_path, payload, protocol):
    content = pickle.dumps(calls(tmp_path / "marker")[payload], protocol=protocol)
    with refused(str(tmp_path)):
        read(tmp_path, content)
    assert os.listdir(tmp_path) == ["data_batch_1"]


@pytest.mark.parametrize("payload", [name for name in calls("") if name not in ("getattr", "as a key")])
def test_a_plain_unpickler_would_have_made_the_call(tmp_path, payload):
    pickle.loads(pickle.dumps(calls(tmp_path / "marker")[payload]))
    assert os.listdir(tmp_path) != []


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("numpy", "load"),
        ("numpy", "fromfile"),
        ("numpy", "matrix"),
        ("numpy", "ndarray.tofile"),
        ("numpy", "dtype.__init__"),
        ("numpy.core.multiarray", "fromfile"),
        ("numpy.core.multiarray", "scalar"),
        ("numpy.core.multiarray", "_reconstruct.__class__"),
        ("numpy._core.numeric", "fromfunction"),
        ("numpy.testing._private.utils", "runstring"),
        ("_codecs", "decode"),
        ("_codecs", "lookup"),
        ("codecs", "encode"),
        ("posix", "system"),
        ("nt", "system"),
        ("builtins", "getattr"),
        ("__builtin__", "eval"),
        ("copyreg", "_reconstructor"),
        ("copy_reg", "_reconstructor"),
        ("ddm.data.readers.pickles", "os"),
        ("torch", "load"),
    ],
)
@pytest.mark.parametrize("by_stack", [False, True])
def test_no_other_name_is_looked_up(tmp_path, module, name, by_stack):
    asking = b"\x80\x04" + string(module) + string(name) + b"\x93" if by_stack else f"c{module}\n{name}\n".encode()
    with refused(f"asks for {module}.{name}", "no code was run"):
        read(tmp_path, asking + b".")


@pytest.mark.parametrize(
    "content",
    [
        b"Pmarker\n.",
        b"K\x01Q.",
        b"(S'mkdir marker'\nios\nsystem\n.",
        b"(cos\nsystem\nS'mkdir marker'\no.",
        b"cnumpy\nndarray\n)\x81.",
        b"\x80\x02\x82\x01.",
        b"\x80\x02\x83\x01\x00.",
        b"\x80\x02\x84\x01\x00\x00\x00.",
        b"\x80\x05\x97.",
    ],
    ids=["persid", "binpersid", "inst", "obj", "newobj", "ext1", "ext2", "ext4", "next buffer"],
)
def test_instructions_no_published_file_has_are_refused(tmp_path, content):
    with refused("pickle instruction"):
        read(tmp_path, content)


def test_an_extension_code_known_to_the_process_is_refused(tmp_path):
    copyreg.add_extension("os", "mkdir", 200)
    try:
        content = b"\x80\x02\x82\xc8" + string(str(tmp_path / "marker")) + b"\x85R."
        pickle.loads(content)  # now it is cached too
        (tmp_path / "marker").rmdir()
        with refused("EXT1"):
            read(tmp_path, content)
    finally:
        copyreg.remove_extension("os", "mkdir", 200)
    assert not (tmp_path / "marker").exists()


def test_no_name_leads_to_numpy_itself():
    assert not any(getattr(stand_in, "__module__", "").startswith("numpy") for stand_in in _STAND_INS.values())


@pytest.mark.parametrize("target", _STAND_INS)
def test_stand_ins_cannot_be_changed_by_a_pickle(tmp_path, target):
    module, name = target
    attributes = {key: getattr(_STAND_INS[target], key, None) for key in ("__setstate__", "__code__", "__init__")}
    # BUILD with (None, {attribute: value}) sets attributes on objects that do not handle their state.
    for key in attributes:
        content = f"c{module}\n{name}\n(N}}V{key}\nI1\nstb.".encode()
        with refused("data_batch_1"):
            read(tmp_path, content)
    assert attributes == {key: getattr(_STAND_INS[target], key, None) for key in attributes}


def peak(call):
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "content",
    [
        # _reconstruct(ndarray, (10**12,), 'b'): numpy would set that much aside
        b"\x80\x02cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n\x8a\x08"
        + struct.pack("<q", 10**12)
        + b"\x85U\x01b\x87R.",
        b"\x80\x02Nr\x00\x00\x00\x01.",
        b"\x80\x02Np16777216\n.",
        b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"short.",
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"short.",
        b"\x80\x02T\xff\xff\xff\x7fshort.",
    ],
    ids=["shape", "binput", "put", "bytes", "bytearray", "string"],
)
def test_a_declared_size_alone_allocates_no_memory(tmp_path, content):
    def attempt():
        with pytest.raises(InputError):
            read(tmp_path, content)

    assert peak(attempt) < 1_000_000


BATCH = python2_pickle(cifar_batch(2, 2))


@pytest.mark.parametrize("length", [0, 1, 2, 10, 100, 1000, len(BATCH) - 1])
def test_truncated_pickles_are_refused(tmp_path, length):
    with refused("data_batch_1", "download it again"):
        read(tmp_path, BATCH[:length])


@pytest.mark.parametrize("value", [[], None, "text", 1, (1, 2)])
def test_a_pickle_that_is_not_a_dictionary_is_refused(tmp_path, value):
    with refused("dictionary"):
        read(tmp_path, pickle.dumps(value))


@settings(deadline=None)
@given(at=st.integers(0, len(BATCH) - 1), byte=st.integers(0, 255), insert=st.booleans())
def test_damaged_pickles_are_read_or_refused(tmp_path_factory, at, byte, insert):
    # Most of the file is pixels, where damage says nothing: half the positions are moved before them.
    at = at % BATCH.index(b"T\x00\x18") if insert else at
    content = BATCH[:at] + bytes([byte]) + BATCH[at + (not insert) :]
    with contextlib.suppress(InputError):
        assert isinstance(read(tmp_path_factory.mktemp("pickle"), content), dict)


def test_many_instructions_in_a_small_file_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "usable_bytes", lambda: 1_000_000)
    with refused("data_batch_1", "memory"):
        read(tmp_path, b"\x80\x04](" + b"]" * 10_000 + b"e.")
    with refused("dictionary"):
        read(tmp_path, b"\x80\x04](" + b"]" * 1000 + b"e.")


def test_a_file_larger_than_the_memory_is_not_read(tmp_path):
    with (tmp_path / "batch").open("wb") as file:
        file.truncate(2**42)  # takes no room on disk
    with refused("batch", "memory"):
        read_pickle(tmp_path / "batch")


def test_strings_and_names_may_be_used_twice_but_containers_may_not(tmp_path):
    shared = "a" * 9
    content = pickle.dumps({"names": [shared, shared, shared.encode()], "deep": [[[(1, 2)]]]}, protocol=2)
    assert read(tmp_path, content)["names"] == [shared, shared, shared.encode()]
    for inner in ([1], (1, [2]), {"a": 1}):
        with refused("pickle instruction"):
            read(tmp_path, pickle.dumps({"names": [inner, inner]}, protocol=2))


def number(value):
    """A pickle's instruction for a whole number of up to 255 bytes."""
    content = pickle.encode_long(value)
    return b"\x8a" + bytes([len(content)]) + content


COLLIDING = [number(k * (2**61 - 1)) for k in range(1, 20_000)]
"""Numbers that all have the hash 0: a table of them takes a time that grows with the square of their count."""


@pytest.mark.parametrize(
    "keys",
    {
        "numbers": lambda key: key,
        "tuples": lambda key: key + b"\x85",
        "numbers put and taken again": lambda key: key + b"q\x000h\x00",
        "numbers with a state": lambda key: key + b"}b",
    }.items(),
    ids=lambda item: item[0],
)
@pytest.mark.parametrize("one_by_one", [False, True])
def test_keys_that_collide_are_refused(tmp_path, keys, one_by_one):
    made = [keys[1](key) for key in COLLIDING]
    items = b"".join(key + b"Ns" for key in made) if one_by_one else b"(" + b"".join(key + b"N" for key in made) + b"u"
    with refused("SETITEM", "no code was run"):
        read(tmp_path, b"\x80\x04}" + items + b".")


@pytest.mark.parametrize("content", [b"\x8f(%su.", b"(%s\x91."], ids=["set", "frozen set"])
def test_sets_are_refused(tmp_path, content):
    with refused("SET", "no code was run"):
        read(tmp_path, b"\x80\x04" + content % b"".join(COLLIDING))


def test_more_instructions_than_any_published_file_has_are_refused(tmp_path):
    with refused("1,000,000", "instructions", "no code was run"):
        read(tmp_path, b"\x80\x04}" + b"N0" * 4_500_000 + b".")


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("kind", [str, str.encode], ids=["text", "bytes"])
def test_a_batch_as_large_as_the_largest_published_one_is_read(tmp_path, protocol, kind):
    labels, names = list(range(100)) * 500, [kind(f"name_{k}.png") for k in range(50_000)]
    batch = {kind("fine_labels"): labels, kind("coarse_labels"): list(labels), kind("filenames"): names}
    assert read(tmp_path, pickle.dumps(batch, protocol)) == {
        "fine_labels": labels,
        "coarse_labels": labels,
        "filenames": names,
    }
