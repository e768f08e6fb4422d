"""Lists of a traced function's operations, independent of node names.

Calls are inlined and identities are omitted, so functions that compute the same
result with the same operations have equal lists.
"""

from functools import partial

from tensorflow.core.framework.function_pb2 import FunctionDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

PASSED = {"Identity", "IdentityN", "StopGradient"}
CALLS = {"PartitionedCall", "StatefulPartitionedCall"}
LOOPS = {"While", "StatelessWhile"}
ASSIGNED = {"AssignVariableOp", "AssignAddVariableOp"}
# The inputs of a replica's program.
GIVEN = {"TPUReplicatedInput", "XlaReplicaId"}
SUMS = {"CrossReplicaSum", "XlaAllReduce"}
# Attributes to ignore: variants of sums, and a check while tracing.
SPELLING = {"reduce_op", "mode", "validate_shape"}


def data(node: NodeDef) -> list[str]:
    """Return the names of a node's inputs, except control inputs."""
    return [name for name in node.input if not name.startswith("^")]


def constant(value):
    """Return a function without arguments that returns a given value."""
    return lambda: value


class Frame:
    """A function that is traversed backwards from its outputs.

    Each value has a token, which identifies the value regardless of names.

    Args:
      function: the function.
      library: {name: function} of the functions that it calls.
      arguments: {name: function that returns its token}; all other arguments
        are numbered in the order of traversal.
      above: the calling frame, to whose `lines` this frame adds its own; None
        starts a new list.
      depth: the number of enclosing loops.
    """

    def __init__(self, function, library, arguments, above=None, depth=0):
        self.function, self.library = function, library
        self.arguments, self.depth = arguments, depth
        self.nodes = {node.name: node for node in function.node_def}
        self.lines = above.lines if above else []
        self.tokens, self.calls = {}, {}

    def token(self, name: str):
        """Return a value's token, after listing the nodes that compute it."""
        owner, _, index = name.partition(":")
        node = self.nodes.get(owner)
        number = int(index.rpartition(":")[2]) if node and index else 0
        if node is None or node.op in GIVEN:
            outside = constant(("outside", len(self.arguments)))
            return self.arguments.setdefault(owner, outside)()
        if node.op in PASSED:
            return self.token(data(node)[number])
        if node.op in CALLS:
            callee = self.callee(node)
            end = callee.function.signature.output_arg[number].name
            return callee.token(callee.function.ret[end])
        return self.line(node), index

    def callee(self, node: NodeDef) -> "Frame":
        """Return the frame of a called function."""
        if node.name not in self.calls:
            function = self.library[node.attr["f"].func.name]
            names = [x.name for x in function.signature.input_arg]
            values = [partial(self.token, name) for name in data(node)]
            arguments = dict(zip(names, values, strict=True))
            self.calls[node.name] = Frame(
                function, self.library, arguments, self, self.depth
            )
        return self.calls[node.name]

    def line(self, node: NodeDef):
        """List a node once, after its inputs; return the node's index."""
        if node.name not in self.tokens:
            listed = self.loop if node.op in LOOPS else self.operation
            line = listed(node)
            self.tokens[node.name] = self.depth, len(self.lines)
            self.lines.append(line)
        return self.tokens[node.name]

    def operation(self, node: NodeDef) -> tuple:
        """Return a node's kind, its attributes and the tokens of its inputs."""
        attributes = {
            name: value.SerializeToString(deterministic=True)
            for name, value in node.attr.items()
            if not name.startswith("_") and name not in SPELLING
        }
        kind = "sum" if node.op in SUMS else node.op
        return kind, attributes, [self.token(name) for name in data(node)]

    def loop(self, node: NodeDef) -> tuple:
        """Return a loop and its functions; list invariants outside the loop."""
        parts = [self.library[node.attr[k].func.name] for k in ("body", "cond")]
        body = Frame(parts[0], self.library, {})
        ends = [parts[0].ret[x.name] for x in parts[0].signature.output_arg]
        starts = [x.name for x in parts[0].signature.input_arg]
        carried = [
            i
            for i, (start, end) in enumerate(zip(starts, ends, strict=True))
            if body.origin(end) != start
        ]
        lists = []
        for part in parts:
            names = [x.name for x in part.signature.input_arg]
            values = {
                name: constant(("carried", self.depth, carried.index(i)))
                if i in carried
                else partial(self.token, data(node)[i])
                for i, name in enumerate(names)
            }
            inner = Frame(part, self.library, values, None, self.depth + 1)
            out = [part.ret[x.name] for x in part.signature.output_arg]
            out = [out[i] for i in carried] if part is parts[0] else out
            lists.append((inner.lines, [inner.token(name) for name in out]))
        return node.op, lists, [self.token(data(node)[i]) for i in carried]

    def origin(self, name: str) -> str:
        """Return the name of the value behind a chain of identities."""
        owner, _, index = name.partition(":")
        node = self.nodes.get(owner)
        if node is None or node.op not in PASSED:
            return name
        return self.origin(data(node)[int(index.rpartition(":")[2])])


def structure(
    function: FunctionDef, library: dict, ends: list[str] | None = None
) -> list[tuple]:
    """Return the operations that a function's assignments and `ends` require.

    Each operation comes after its inputs.

    Args:
      function: the function.
      library: {name: function} of the functions that it calls.
      ends: names of values; None selects the function's outputs.
    """
    frame = Frame(function, library, {})
    for node in function.node_def:
        if node.op in ASSIGNED:
            frame.line(node)
    if ends is None:
        ends = [function.ret[x.name] for x in function.signature.output_arg]
    returned = [frame.token(name) for name in ends]
    return [*frame.lines, ("return", {}, returned)]
