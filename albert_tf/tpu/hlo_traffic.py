"""What an optimized XLA module moves, read from its text.

XLA's own cost analysis counts the body of a loop once; here it counts as
often as it runs. Bytes are those from and to the chip's memory (HBM), not
those of its scratchpad, which layouts mark with `S(1)`.
"""

import collections
import dataclasses
import math
import re

BITS = re.compile(r"[a-z]+(\d+)")  # of a type such as bf16
SHAPE = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\](\{[^}]*\})?")
INSTRUCTION = re.compile(
    r"^ +(?:ROOT )?%(?P<name>\S+) = (?P<shape>.*?) "
    r"(?P<opcode>[a-z][a-z0-9-]*)\((?P<operands>[^)]*)\)(?P<rest>.*)$"
)
HEADER = re.compile(r"^(ENTRY )?%?(\S+) \(.*\{$")
OPERAND = re.compile(r"%([^\s,()]+)")
CALLED = re.compile(
    r"(?:calls|to_apply|body|called_computations)=\{?%([^\s,}]+)"
)
CONDITION = re.compile(r"condition=%([^\s,}]+)")
GROUPS = re.compile(
    r"replica_groups=\{\{([\d,]*)\}|replica_groups=\[\d+,(\d+)\]"
)
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
INDEX = re.compile(r"index=(\d+)")
CONSTANT = re.compile(r"^ +%\S+ = s32\[\]\S* constant\((\d+)\)")

# These move nothing, or were counted where they began.
FREE = frozenset(
    """parameter constant tuple get-tuple-element bitcast after-all partition-id
    replica-id copy-done slice-done all-reduce-done all-gather-done
    opt-barrier while call conditional iota async-done""".split()
)
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


def size(shape: str, scratch: bool = False) -> int:
    """Return the bytes of a shape, or of each array of a tuple of shapes.

    Args:
      shape: as XLA writes it.
      scratch: whether to count arrays in the scratchpad too.
    """
    total = 0
    for kind, dims, layout in SHAPE.findall(shape):
        if scratch or "S(1)" not in layout:
            bits = BITS.match(kind)
            count = math.prod(int(d) for d in dims.split(",") if d)
            total += count * (int(bits[1]) if bits else 8) // 8
    return total


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One line of a computation; a parameter's operand is its number."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    rest: str


class Module:
    """A module's computations: {name: {instruction's name: Instruction}}."""

    def __init__(self, text: str):
        self.computations: dict[str, dict[str, Instruction]] = {}
        self.bounds: dict[str, list[int]] = collections.defaultdict(list)
        self.entry = current = ""
        for line in text.splitlines():
            if header := HEADER.match(line):
                current = header[2]
                self.computations[current] = {}
                self.entry = current if header[1] else self.entry
            if current and (match := INSTRUCTION.match(line)):
                x = match.groupdict()
                if x["opcode"] == "parameter":
                    x["operands"] = (x["operands"],)
                else:
                    x["operands"] = tuple(OPERAND.findall(x["operands"]))
                self.computations[current][x["name"]] = Instruction(**x)
                self.bounds[current] += map(int, CONSTANT.findall(line))

    def trips(self, loop: Instruction) -> int:
        """Return how often a loop that counts up from zero runs its body.

        The bound is a constant of the loop's condition, or for a backward
        pass what the forward loop counted up to.
        """
        condition = CONDITION.search(loop.rest)[1]
        if self.bounds[condition]:
            return self.bounds[condition][0]
        around = next(c for c in self.computations.values() if loop.name in c)
        initial = around[loop.operands[0]]
        for x in self.computations[condition].values():
            index = INDEX.search(x.rest)
            if x.opcode != "get-tuple-element" or index[1] == "0":
                continue
            forward = around[initial.operands[int(index[1])]]
            while forward.opcode != "while" and forward.operands:
                forward = around[forward.operands[0]]
            if forward.opcode == "while":
                return self.trips(forward)
        return 1

    def times(self) -> dict[str, int]:
        """Return {computation: how often a step runs it}, without fusions."""
        times: dict[str, int] = collections.Counter()

        def visit(name: str, number: int) -> None:
            times[name] += number
            for x in self.computations[name].values():
                if x.opcode in ("while", "call", "conditional"):
                    inner = self.trips(x) if x.opcode == "while" else 1
                    for called in CALLED.findall(x.rest):
                        visit(called, number * inner)

        visit(self.entry, 1)
        return times

    def _users(self, computation: str, name: str) -> list[tuple]:
        """Return what reads an array, in fusions inside a fusion too.

        Each is (instruction, its neighbours, the array's name among them).
        """
        users, inside = [], self.computations[computation]
        for x in inside.values():
            if x.opcode != "fusion" and name in x.operands:
                users.append((x, inside, name))
            for number, operand in enumerate(x.operands):
                if x.opcode == "fusion" and operand == name:
                    inner = CALLED.search(x.rest)[1]
                    users += self._users(inner, self._parameter(inner, number))
        return users

    def _parameter(self, computation: str, number: int) -> str:
        """Return the name of a computation's parameter."""
        return next(
            x.name
            for x in self.computations[computation].values()
            if x.opcode == "parameter" and x.operands == (str(number),)
        )

    def _fused(self, fusion: Instruction, shapes: dict[str, str]) -> int:
        """Return the bytes of a fusion, of slices only what is cut out."""
        called = CALLED.search(fusion.rest)[1]
        total, output = 0, size(fusion.shape)
        for number, operand in enumerate(fusion.operands):
            if not size(shapes[operand]):
                continue
            users = self._users(called, self._parameter(called, number))
            if users and all(u.opcode == "dynamic-slice" for u, *_ in users):
                total += sum(size(u.shape, True) for u, *_ in users)
            elif users and all(
                u.opcode == "dynamic-update-slice" and u.operands[0] == name
                for u, _, name in users  # which write into it in place
            ):
                for u, inside, _ in users:
                    update = inside[u.operands[1]].shape
                    total += size(update, True)
                    output -= size(u.shape, True) - size(update, True)
            else:
                total += size(shapes[operand])
        return total + max(output, 0)

    def _bytes(self, x: Instruction, shapes: dict[str, str]) -> int:
        if x.opcode in FREE or (x.opcode == "custom-call" and not x.operands):
            return 0  # the latter reserves memory
        if x.opcode == "fusion":
            return self._fused(x, shapes)
        if x.opcode in ("copy-start", "slice-start"):
            return self._prefetched(x, shapes)
        return size(x.shape) + sum(size(shapes[o]) for o in x.operands)

    @staticmethod
    def _prefetched(x: Instruction, shapes: dict[str, str]) -> int:
        """Return the bytes of a copy between memory and scratchpad."""
        arrays = [m[0] for m in SHAPE.finditer(x.shape)]
        sources = [shapes[o] for o in x.operands]
        # A copy gives (copy, source, context), a slice (sources, slice, ...).
        whole = x.opcode == "copy-start"
        target = arrays[0] if whole else arrays[len(sources)]
        moved = size(target, True)
        return moved * sum(bool(size(s)) for s in (sources[0], target))

    def bytes_moved(self) -> int:
        """Return the bytes from and to memory in a step."""
        total = 0
        for name, number in self.times().items():
            computation = self.computations[name]
            shapes = {x.name: x.shape for x in computation.values()}
            total += number * sum(
                self._bytes(x, shapes) for x in computation.values()
            )
        return total

    def cycles(self) -> int:
        """Return the cycles that the compiler itself expects of a step."""
        return sum(
            number * int(cycles)
            for name, number in self.times().items()
            for x in self.computations[name].values()
            for cycles in CYCLES.findall(x.rest)
        )

    def collectives(self) -> list[dict]:
        """Return what replicas exchange: kind, times, bytes, group's size."""
        exchanged = []
        for name, number in self.times().items():
            for x in self.computations[name].values():
                kind = x.opcode.removesuffix("-start")
                if kind not in COLLECTIVES:
                    continue
                groups = GROUPS.search(x.rest)
                members, count = groups.groups() if groups else ("", "0")
                exchanged.append(
                    {
                        "kind": kind,
                        "times": number,
                        "bytes": size(x.shape, True),
                        "replicas": int(count or len(members.split(","))),
                    }
                )
        return exchanged
