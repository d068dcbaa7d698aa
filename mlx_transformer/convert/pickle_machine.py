"""A pickle reader that cannot run anything.

Python's own unpickler imports and calls whatever a file names. This one is a loop over the opcodes
that `torch.save` writes. It builds numbers, strings, lists, tuples and dicts itself and asks
`find_global` for every other name; what that returns is a plain value or a `Constructor` of ours,
and a constructor is the only thing ever called. Objects of other classes are their data (`Record`).
All limits are checked before memory is taken.
"""

import mmap
import pickletools
import struct
from collections.abc import Callable
from dataclasses import dataclass

from mlx_transformer.errors import InputError
from mlx_transformer.inputs.printable import shown

# Far more than any checkpoint needs, far less than would hurt: see tests/convert/test_hostile.py.
MAX_BYTES = 64 << 20
MAX_STEPS = 4_000_000
MAX_OBJECTS = 1_000_000
MAX_INTEGER_BYTES = 32

FindGlobal = Callable[[str], object]
PersistentLoad = Callable[[object], object]


@dataclass(frozen=True)
class Constructor:
    """One of our own functions, standing in for the class or function of that name."""

    name: str
    build: Callable[..., object]


@dataclass(frozen=True)
class Foreign:
    """The name of a class or function of others. It may be kept as a value or have objects, which
    are data; a file that wants it called is refused."""

    name: str
    instead: str  # what the user can do


@dataclass(slots=True)
class Record:
    """An object of somebody's class: its data, none of its code."""

    name: str
    args: tuple[object, ...] = ()
    state: object = None  # its attributes
    contents: list[object] | dict[object, object] | None = None  # of a kind of list or dict


def load_pickle(
    data: bytes | mmap.mmap,
    find_global: FindGlobal,
    persistent_load: PersistentLoad,
    start: int = 0,
) -> tuple[object, int]:
    """The value of the pickle that begins at `start`, and where it ends."""
    machine = _Machine(data, find_global, persistent_load, start)
    return machine.run(), machine.position


class _Machine:
    """The pickle virtual machine: a stack, the positions of the open marks, and a memo."""

    def __init__(
        self,
        data: bytes | mmap.mmap,
        find_global: FindGlobal,
        persistent_load: PersistentLoad,
        start: int,
    ):
        self.data = data
        self.position = start
        self.limit = min(len(data), start + MAX_BYTES)
        self.find_global = find_global
        self.persistent_load = persistent_load
        self.stack: list[object] = []
        self.marks: list[int] = []
        self.memo: dict[int, object] = {}
        self.objects = 0

    def run(self) -> object:
        for _ in range(MAX_STEPS):
            code = self.read(1)
            if code == b".":
                return self.pop()
            step = _STEPS.get(code)
            if step is None:
                raise InputError(f"the pickle uses {_opcode_name(code)}, which torch.save does not")
            step(self)
        raise InputError(f"the pickle takes more than {MAX_STEPS} steps")

    # Reading

    def read(self, count: int) -> bytes:
        end = self.position + count
        if end > self.limit:
            if self.limit < len(self.data):
                raise InputError(f"the pickle is larger than {MAX_BYTES >> 20} MB")
            raise InputError("the pickle is cut short")
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def number(self, layout: str) -> int:
        return struct.unpack(layout, self.read(struct.calcsize(layout)))[0]

    def line(self) -> str:
        end = self.data.find(b"\n", self.position, min(self.limit, self.position + 1000))
        if end < 0:
            raise InputError("the pickle is cut short in the middle of a name")
        text = self.text(end - self.position)
        self.position = end + 1
        return text

    def text(self, count: int) -> str:
        # Python 2 wrote strings as bytes of any kind: nothing may fail to decode.
        return self.read(count).decode("utf-8", "backslashreplace")

    def integer(self, count: int) -> int:
        if count > MAX_INTEGER_BYTES:
            raise InputError(f"the pickle holds an integer of {count} bytes")
        return int.from_bytes(self.read(count), "little", signed=True)

    # Stack

    def push(self, value: object) -> None:
        self.stack.append(value)

    def new(self, value: object) -> None:
        """Push an object that takes more memory than the bytes that ask for it."""
        self.charge(1)
        self.push(value)

    def charge(self, objects: int) -> None:
        self.objects += objects
        if self.objects > MAX_OBJECTS:
            raise InputError(f"the pickle holds more than {MAX_OBJECTS} objects")

    def pop(self) -> object:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise InputError("the pickle takes a value from an empty stack")
        return self.stack.pop()

    def top(self) -> object:
        value = self.pop()
        self.stack.append(value)
        return value

    def mark(self) -> None:
        self.marks.append(len(self.stack))

    def pop_mark(self) -> list[object]:
        """Everything above the last mark, taken off."""
        if not self.marks:
            raise InputError("the pickle closes a group that it never opened")
        start = self.marks.pop()
        values = self.stack[start:]
        del self.stack[start:]
        return values

    # Memo

    def put(self, index: int) -> None:
        self.memo[index] = self.top()

    def get(self, index: int) -> None:
        if index not in self.memo:
            raise InputError(f"the pickle refers to its object {index} before making it")
        self.push(self.memo[index])

    # Containers

    def tuple_of(self, count: int) -> None:
        self.new(tuple(reversed([self.pop() for _ in range(count)])))

    def append(self, values: list[object]) -> None:
        target = self.container([])
        if not isinstance(target, list):
            raise InputError(f"the pickle appends to a {type(target).__name__}")
        target.extend(values)

    def container(self, empty: list[object] | dict[object, object]) -> object:
        """What items are added to: the value on top, or what it holds as a kind of list or dict"""
        target = self.top()
        if not isinstance(target, Record):
            return target
        if target.contents is None:
            target.contents = empty
        return target.contents

    def set_items(self, values: list[object]) -> None:
        target = self.container({})
        if not isinstance(target, dict):
            raise InputError(f"the pickle sets items of a {type(target).__name__}")
        if len(values) % 2:
            raise InputError("the pickle has a key without a value")
        target.update(zip(map(checked_key, values[::2]), values[1::2], strict=True))

    # Everything that names something outside the file

    def push_global(self, module: object, name: object) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise InputError("the pickle names a global by something that is not a string")
        self.push(self.find_global(f"{module}.{name}"))

    def new_object(self) -> None:
        args, kind = self.pop(), self.pop()
        if isinstance(kind, Foreign) and isinstance(args, tuple):
            self.new(Record(kind.name, args))
        else:
            self.call(kind, args)

    def call(self, constructor: object, args: object) -> None:
        if isinstance(constructor, Foreign):
            raise InputError(
                f"the file calls {shown(constructor.name)}, which is not known to be harmless; "
                f"{constructor.instead}"
            )
        if not isinstance(constructor, Constructor):
            raise InputError("the pickle calls something that is not a class or function")
        if not isinstance(args, tuple):
            raise InputError(f"the pickle calls {constructor.name} without a tuple of arguments")
        # A few bytes can ask for the same large copy again and again.
        self.charge(1 + sum(len(a) for a in args if isinstance(a, dict | list | tuple)))
        try:
            self.push(constructor.build(*args))
        except TypeError as error:
            raise InputError(f"the arguments of {constructor.name} do not fit") from error

    def build(self) -> None:
        state, target = self.pop(), self.top()
        if isinstance(target, Record):
            target.state = state
        elif not isinstance(target, dict):
            # A dict's state is the attributes of an OrderedDict: module versions, not weights.
            raise InputError(f"the pickle sets the state of a {type(target).__name__}")


def checked_key(key: object) -> object:
    """A key whose hash is cheap: huge integers can be made to collide, nested tuples to recurse."""
    if isinstance(key, str | bytes | float | None) or (isinstance(key, int) and abs(key) < 1 << 63):
        return key
    raise InputError(f"the pickle uses {shown(key)} as a key of a dict")


def _opcode_name(code: bytes) -> str:
    known = {opcode.code: opcode.name for opcode in pickletools.opcodes}
    return f"the opcode {known.get(code.decode('latin-1'), code.hex())}"


_STEPS: dict[bytes, Callable[[_Machine], object]] = {
    # Protocol and framing: nothing to do.
    b"\x80": lambda m: m.read(1),
    b"\x95": lambda m: m.read(8),
    # Constants
    b"N": lambda m: m.push(None),
    b"\x88": lambda m: m.push(True),
    b"\x89": lambda m: m.push(False),
    b"K": lambda m: m.push(m.number("<B")),
    b"M": lambda m: m.push(m.number("<H")),
    b"J": lambda m: m.push(m.number("<i")),
    b"\x8a": lambda m: m.push(m.integer(m.number("<B"))),
    b"\x8b": lambda m: m.push(m.integer(m.number("<I"))),
    b"G": lambda m: m.push(m.number(">d")),
    b"U": lambda m: m.push(m.text(m.number("<B"))),
    b"T": lambda m: m.push(m.text(m.number("<I"))),
    b"\x8c": lambda m: m.push(m.text(m.number("<B"))),
    b"X": lambda m: m.push(m.text(m.number("<I"))),
    b"\x8d": lambda m: m.push(m.text(m.number("<Q"))),
    b"C": lambda m: m.push(m.read(m.number("<B"))),
    b"B": lambda m: m.push(m.read(m.number("<I"))),
    b"\x8e": lambda m: m.push(m.read(m.number("<Q"))),
    # Containers; a set is kept as a list, since nobody asks it anything
    b"}": lambda m: m.new({}),
    b"]": lambda m: m.new([]),
    b"\x8f": lambda m: m.new([]),
    b")": lambda m: m.push(()),
    b"\x85": lambda m: m.tuple_of(1),
    b"\x86": lambda m: m.tuple_of(2),
    b"\x87": lambda m: m.tuple_of(3),
    b"t": lambda m: m.new(tuple(m.pop_mark())),
    b"\x91": lambda m: m.new(m.pop_mark()),
    b"a": lambda m: m.append([m.pop()]),
    b"e": lambda m: m.append(m.pop_mark()),
    b"\x90": lambda m: m.append(m.pop_mark()),
    b"s": lambda m: m.set_items([m.pop(), m.pop()][::-1]),
    b"u": lambda m: m.set_items(m.pop_mark()),
    # Stack and memo
    b"(": lambda m: m.mark(),
    b"0": lambda m: m.pop(),
    b"1": lambda m: m.pop_mark(),
    b"2": lambda m: m.push(m.top()),
    b"q": lambda m: m.put(m.number("<B")),
    b"r": lambda m: m.put(m.number("<I")),
    b"\x94": lambda m: m.put(len(m.memo)),
    b"h": lambda m: m.get(m.number("<B")),
    b"j": lambda m: m.get(m.number("<I")),
    # Names
    b"c": lambda m: m.push_global(m.line(), m.line()),
    b"\x93": lambda m: m.push_global(*[m.pop(), m.pop()][::-1]),
    b"R": lambda m: m.call(*[m.pop(), m.pop()][::-1]),
    b"\x81": lambda m: m.new_object(),
    b"b": lambda m: m.build(),
    b"Q": lambda m: m.push(m.persistent_load(m.pop())),
}
