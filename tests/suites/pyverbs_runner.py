"""Runs rdma-core's tests with a seed and judges them by the list of those that must pass.

Called in the folder of the tests: pyverbs_runner.py LIST SEED.
"""
import importlib.util
import random
import sys
import unittest

listed, seed = sys.argv[1], int(sys.argv[2])
sys.argv = ["run_tests.py", "--dev", "soft_lo"]
sys.path.insert(0, ".")

from args_parser import parser  # noqa: E402

spec = importlib.util.spec_from_file_location("tests", "__init__.py", submodule_search_locations=["."])
tests = importlib.util.module_from_spec(spec)
sys.modules["tests"] = tests
spec.loader.exec_module(tests)
parser.parse_args()
random.seed(seed)

from tests.base import RDMATestCase  # noqa: E402


def note_address(self, dev, port, idx):
    """Says which address a device has: the tests look for it below /sys, where these devices are not.

    They ask for the device of an identifier when it is bound, which an address of localhost does not name.
    """
    self.args.append([dev, port, idx, "127.0.0.2", "00:00:00:00:00:00"])


RDMATestCase._get_ip_mac = note_address


class Outcomes(unittest.TextTestResult):
    """Remembers how each test ended."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.ended = {}

    def note(self, test, outcome):
        self.ended[test.id().removeprefix("tests.")] = outcome

    def addSuccess(self, test):
        super().addSuccess(test)
        self.note(test, "ok")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, f"skipped: {reason}")

    def addError(self, test, error):
        super().addError(test, error)
        self.note(test, "error")

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.note(test, "failed")


suite = unittest.TestLoader().loadTestsFromModule(tests)
result = unittest.TextTestRunner(resultclass=Outcomes, verbosity=0).run(suite)
with open(listed) as lines:
    must = [line.split("#")[0].strip() for line in lines if line.split("#")[0].strip()]
wrong = [(name, result.ended.get(name, "not run")) for name in must if result.ended.get(name) != "ok"]
wrong += [(name, end) for name, end in result.ended.items() if name not in must and end in ("error", "failed")]
passed = sorted(name for name, end in result.ended.items() if end == "ok")
for name, end in wrong:
    print(f"{name}: {end}")
for name in passed:
    if name not in must:
        print(f"passes, and is not in the list: {name}")
print(f"pyverbs run {seed}: {len(passed)} ok, {len(wrong)} wrong, {len(result.ended)} run, {len(must)} must pass")
sys.exit(1 if wrong else 0)
