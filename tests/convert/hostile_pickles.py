"""Pickles that try to run something, to confuse the reader, or to ask for the impossible."""

import struct


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def call(module: str, name: str, *args: str) -> bytes:
    return f"c{module}\n{name}\n".encode() + b"(" + b"".join(map(text, args)) + b"tR"


STORAGE = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + b"K\x04tQ"
REBUILD = b"ctorch._utils\n_rebuild_tensor_v2\n"


def tensor(shape: bytes, strides: bytes, offset: bytes = b"K\x00") -> bytes:
    """A state dict of one tensor over the storage `0`, which has four elements."""
    return b"}" + text("a") + REBUILD + b"(" + STORAGE + offset + shape + strides + b"\x89}tRs"


def nested_modules(depth: int) -> bytes:
    """Modules that have the one before twice: a few bytes, and 2^depth attributes"""
    made = b""
    for i in range(depth):
        inner = b"h" + bytes([i])
        made += b"0c__torch__\nM\n)\x81q" + bytes([i + 1]) + b"}("
        made += text("a") + inner + text("b") + inner + b"ub"
    return made


def payloads(command: str) -> dict[str, bytes]:
    """Pickles without their PROTO and STOP, by what they try."""
    short = command.encode()
    line = command.replace("'", '"').encode()
    deep = 100_000
    return {
        # TorchScript's names
        "a build_ of theirs that builds": call("torch.jit._pickle", "build_tensor_from_id", "0"),
        "a tag that is called": call("torch.jit._pickle", "restore_type_tag", "x") + b")R",
        "a module that is called": call("__torch__", "Module") + text(command) + b"\x85R",
        "a module in itself": b"c__torch__\nM\n)\x81q\x01}" + text("m") + b"h\x01sb",
        "modules of modules": b"c__torch__\nM\n)\x81q\x00}b" + nested_modules(60),
        # Calls
        "os.system": call("os", "system", command),
        "posix.system": call("posix", "system", command),
        "nt.system": call("nt", "system", command),
        "builtins.eval": call("builtins", "eval", f"__import__('os').system({command!r})"),
        "python 2 eval": call("__builtin__", "eval", f"__import__('os').system({command!r})"),
        "builtins.exec": call("builtins", "exec", f"import os; os.system({command!r})"),
        "builtins.getattr": call("builtins", "getattr", "os", "system"),
        "builtins.__import__": call("builtins", "__import__", "os"),
        "subprocess.Popen": call("subprocess", "Popen", command),
        "torch.load": call("torch", "load", "x.pt"),
        "storage from bytes": call("torch.storage", "_load_from_bytes", "x"),
        "numpy.load": call("numpy", "load", "x.npy"),
        "runpy": call("runpy", "_run_code", command),
        "webbrowser": call("webbrowser", "open", "http://localhost"),
        "dotted name": call("collections", "OrderedDict.__init__.__globals__", command),
        "empty names": b"c\n\n)R",
        "protocol 4 global": text("os") + text("system") + b"\x93" + text(command) + b"\x85R",
        "global of no strings": b"K\x01K\x02\x93)R",
        "INST": b"(S'" + line + b"'\nios\nsystem\n",
        "OBJ": b"(cos\nsystem\n" + text(command) + b"o",
        "NEWOBJ": b"csubprocess\nPopen\n" + text(command) + b"\x85\x81",
        "NEWOBJ_EX": b"csubprocess\nPopen\n" + text(command) + b"\x85}\x92",
        "EXT1": b"\x82\x01",
        "unused global": b"cos\nsystem\n0}",
        "in a list": b"](" + text("x") + call("os", "system", command) + b"e",
        "as an argument": b"ccollections\nOrderedDict\n" + call("os", "system", command) + b"\x85R",
        "partial": b"cfunctools\npartial\ncos\nsystem\n\x85R",
        "partial, called": b"cfunctools\npartial\ncbuiltins\nint\n\x85R" + text("7") + b"\x85R",
        "calls a string": text("os.system") + text(command) + b"\x85R",
        "calls a storage type": b"ctorch\nFloatStorage\n" + text(command) + b"\x85R",
        "calls without a tuple": b"ccollections\nOrderedDict\n" + text(command) + b"R",
        "wrong arguments": b"ctorch._utils\n_rebuild_tensor_v2\n)R",
        "terminal codes": call("\x1b[31mos", "system\x07", command),
        "long name": call("o" * 900, "system", command),
        "endless name": b"c" + b"o" * 5000,
        # State
        "BUILD on a string": text("a") + b"}b",
        "BUILD on a list": b"]}b",
        "BUILD on a global": b"ccollections\nOrderedDict\n}b",
        "setstate": b"cargparse\nNamespace\n)\x81}" + text("__setstate__") + text(command) + b"sb",
        "class swap": b"cargparse\nNamespace\n)\x81}" + text("__class__") + b"cos\nsystem\nsb",
        # Stack and memo
        "empty stack": b"",
        "nothing to pop": b"0",
        "no mark": b"e",
        "pop over a mark": b"K\x01(0",
        "memo before it is made": b"h\x05",
        "memo far away": b"}r\xff\xff\xff\xff",
        "memo of a global, reused": b"cos\nsystem\nq\x000h\x00" + text(command) + b"\x85R",
        "list in itself": b"]q\x00h\x00a",
        "dict in itself": b"}q\x00" + text("model") + b"h\x00s",
        "key without value": b"}(" + text("a") + b"u",
        "append to a dict": b"}K\x01a",
        "set item of a list": b"]K\x01K\x02s",
        "list as key": b"}]K\x01s",
        "tuple as key": b"}K\x01\x85K\x01s",
        "nested tuple as key": b"})" + b"\x85" * deep + b"K\x01s",
        "nested lists": b"]" * deep + b"a" * (deep - 1),
        "nested dicts": b"}" + (text("model") + b"}") * 1000 + b"s" * 1000,
        "doubling": b"]" + b"".join(b"q%c]h%ch%ca" % (i, i, i) + b"a" for i in range(200)),
        "a million dicts": b"(" + b"}" * 1_500_000 + b"l",
        "a million marks": b"(" * 4_500_000,
        "many copies": b"ccollections\nOrderedDict\nq\x00](" + b"(K\x01K\x02t" * 9000
        + b"e\x85q\x01" + b"h\x00h\x01R" * 100_000,
        "long integer": b"\x8b\xff\xff\xff\x7f" + b"1" * 100,
        "integer of 100 bytes": b"\x8ad" + b"1" * 100 + b"0}",
        "colliding keys": b"}(" + b"".join(
            b"\x8a\x10" + ((2**61 - 1) * i).to_bytes(16, "little") + b"N" for i in range(1, 50_000)
        ) + b"u",
        "string beyond the end": b"X\xff\xff\xff\xff" + short,
        "huge string": b"\x8d" + struct.pack("<Q", 1 << 62) + short,
        "unknown opcode": b"\xff",
        # Storages and tensors
        "string as storage": text("/etc/passwd") + b"Q",
        "text persistent id": b"P/etc/passwd\n",
        "storage elsewhere": STORAGE.replace(text("0"), text("../../../../etc/passwd")),
        "storage too large": STORAGE.replace(b"K\x04", b"J\xff\xff\xff\x7f"),
        "storage of negative size": STORAGE.replace(b"K\x04", b"J\xff\xff\xff\xff"),
        "storage of unknown type": STORAGE.replace(b"ctorch\nFloatStorage\n", text("Float")),
        "storage of a refused type": STORAGE.replace(b"FloatStorage", b"QInt8Storage"),
        "storage in a storage": STORAGE.replace(text("cpu"), STORAGE) + b"0}",
        "view far away": STORAGE.replace(b"tQ", b"(" + text("v") + b"J\xff\xff\xff\x7fK\x01ttQ"),
        "too many elements": tensor(b"K\x05\x85", b"K\x01\x85"),
        "stride too far": tensor(b"K\x02\x85", b"K\x04\x85"),
        "negative stride": tensor(b"K\x02\x85", b"J\xff\xff\xff\xff\x85"),
        "negative size": tensor(b"J\xff\xff\xff\xff\x85", b"K\x01\x85"),
        "offset too far": tensor(b"K\x04\x85", b"K\x01\x85", b"K\x01"),
        "expanded a trillion times": tensor(b"J@B\x0f\x00J@B\x0f\x00\x86", b"K\x00K\x00\x86"),
        "overflowing sizes": tensor(b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86", b"K\x00K\x00\x86"),
        "sizes and strides differ": tensor(b"K\x02\x85", b"K\x02K\x01\x86"),
        "a thousand dimensions": tensor(*[b"(" + b"K\x01" * 1000 + b"t"] * 2),
        "size is a string": tensor(text("4") + b"\x85", b"K\x01\x85"),
        "size is a list": tensor(b"]", b"K\x01\x85"),
        "no storage": b"}" + text("a") + REBUILD + b"(NK\x00K\x01\x85K\x01\x85\x89}tRs",
        "conjugate": tensor(b"K\x01\x85", b"K\x01\x85").replace(
            b"\x89}tR", b"\x89}}" + text("conj") + b"\x88stR"
        ),
        # No state dict
        "a number": b"K\x01",
        "no tensors": b"}" + text("epoch") + b"K\x01s",
    }  # fmt: skip
