"""`docs/cloud_tpu.md` agrees with the code."""

import re
import shlex

from project_file import PROJECT, ROOT

from albert_tf.tpu.chips import parse

GUIDE = (ROOT / "docs" / "cloud_tpu.md").read_text(encoding="utf-8")


def test_the_guide_installs_what_is_required():
    """The guide installs every dependency that TPU VMs lack."""
    lines = GUIDE.replace("\\\n", " ").splitlines()
    [line] = [x for x in lines if x.startswith("pip install 'sentencepiece")]
    others = {
        r for r in PROJECT["dependencies"] if not r.startswith("tensorflow")
    }
    assert set(shlex.split(line)[2:]) == others


def test_the_slices_of_the_guide_exist():
    """Every accelerator type in the guide exists."""
    named = set(re.findall(r"\bv(?:\d|5litepod|5e|5p|6e)-\d+\b", GUIDE))
    assert {"v3-8", "v4-8", "v5litepod-8", "v5p-8", "v6e-8"} <= named
    for name in named:
        parse(name)
