"""A pytest plugin that fails runs with skipped tests: `-p tests.no_skips`."""

import pytest


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """Fail a run in which a test was skipped."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter.stats.get("skipped") and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    """List the skipped tests and why they were skipped."""
    for report in terminalreporter.stats.get("skipped", []):
        terminalreporter.line(f"SKIPPED {report.nodeid}: {report.longrepr[2]}")
