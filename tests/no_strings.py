"""A pytest plugin for runs without tensorflow-text.

With `-p tests.no_strings`, a test that fails because tensorflow-text is missing
is skipped.
"""

import pytest

MISSING = "needs tensorflow_text: pip install"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Report a test as skipped if it fails for lack of tensorflow-text."""
    report = (yield).get_result()
    if not (report.failed and call.excinfo):
        return
    error = call.excinfo.value
    text = f"{error} {getattr(error, 'stderr', '')} {report.longrepr}"
    if MISSING in text or "No module named 'tensorflow_text'" in text:
        path, line, _ = item.location
        report.outcome = "skipped"
        report.longrepr = path, line, "needs tensorflow_text"
