"""A substitute for Apache Beam that runs each step as soon as it is defined.

A collection is a list. Elements that a real runner may reorder are reversed.
"""

import collections
import importlib.machinery
import sys
import types


class Step:
    """A named step of a pipeline: a function from a list to a list."""

    def __init__(self, function):
        self.function = function

    def __rrshift__(self, name):
        """Return the step with a name, as in `"name" >> step`."""
        assert isinstance(name, str)
        return self

    def __ror__(self, values):
        """Apply the step, as in `values | step`."""
        assert isinstance(values, list | Pipeline)
        return self.function(values)


class FlatMap(Step):
    """A step that yields any number of elements for each element."""

    def __init__(self, function):
        super().__init__(lambda xs: [y for x in xs for y in function(x)])

    def with_outputs(self, tag, main):
        """Return a step that separates tagged elements from the others."""

        def separate(values):
            found = {main: [], tag: []}
            for value in self.function(values):
                is_tagged = isinstance(value, Tagged)
                found[tag if is_tagged else main].append(
                    value.value if is_tagged else value
                )
            return found

        return Step(separate)


Tagged = collections.namedtuple("Tagged", "tag value")


def group(values):
    """Return (key, values) pairs; both keys and values are reordered."""
    groups = collections.defaultdict(list)
    for key, value in values[::-1]:
        groups[key].append(value)
    return list(groups.items())


class Pipeline:
    """A context in which steps run; the class keeps the latest `options`."""

    options = None

    def __init__(self, options):
        Pipeline.options = options

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


def install(monkeypatch):
    """Let `import apache_beam` import the substitute during a test."""
    options = types.SimpleNamespace(PipelineOptions=list)
    beam = types.SimpleNamespace(
        __spec__=importlib.machinery.ModuleSpec("apache_beam", None),
        Pipeline=Pipeline,
        Create=lambda values: Step(lambda pipeline: values),
        Reshuffle=lambda: Step(lambda values: values[::-1]),
        Map=lambda f, *more: Step(lambda xs: [f(x, *more) for x in xs]),
        FlatMap=FlatMap,
        GroupByKey=lambda: Step(group),
        CombineGlobally=lambda f: Step(lambda values: [f(values)]),
        combiners=types.SimpleNamespace(
            ToList=lambda: Step(lambda values: [values])
        ),
        pvalue=types.SimpleNamespace(
            TaggedOutput=Tagged, AsSingleton=lambda values: values[0]
        ),
        options=types.SimpleNamespace(pipeline_options=options),
    )
    for name, module in {
        "apache_beam": beam,
        "apache_beam.options": beam.options,
        "apache_beam.options.pipeline_options": options,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    runner = "albert_tf.data.builder.beam_runner"
    monkeypatch.setitem(sys.modules, runner, None)
    del sys.modules[runner]
