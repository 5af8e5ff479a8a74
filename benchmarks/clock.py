"""What a measured program tells: one JSON object on the last line of its output. Needs the standard library alone.

clock = Clock()
... load, open, build ...
clock.begin()                   the job proper
for batch in batches:
    clock.add(rows=32, tokens=801)
clock.tell("torch", "datasets")
"""

import json
import os
import sys
import time
from importlib.metadata import PackageNotFoundError, version


class Clock:
    """Counts rows and real tokens, and the time between `begin` and the last `add`."""

    def __init__(self):
        self._process = float(os.environ.get("BENCH_STARTED", time.time()))
        self._begin = self._end = (time.perf_counter(), time.process_time())
        self.first_s = None  # from the start of the process to the first result
        self.rows = self.tokens = 0
        self.first_step_s = None  # from the begin of training to the end of its first step

    def begin(self):
        """The job begins, or begins again: what was counted before was warming up."""
        self._begin = self._end = (time.perf_counter(), time.process_time())
        self.rows = self.tokens = 0

    def first(self):
        """There is a first result."""
        if self.first_s is None:
            self.first_s = time.time() - self._process

    def add(self, rows, tokens):
        self.first()
        self.rows += int(rows)
        self.tokens += int(tokens)
        self._end = (time.perf_counter(), time.process_time())

    def step(self, rows, tokens):
        """A step is done. The first one, in which graphs are built, is not part of the job proper."""
        if self.first_s is None:
            self.first_step_s = time.perf_counter() - self._begin[0]
            self.first()
            self.begin()
        else:
            self.add(rows, tokens)

    def tell(self, *packages, **more):
        """Writes the line, with the versions of packages."""
        wall, cpu = (end - begin for begin, end in zip(self._begin, self._end))  # noqa: B905 - old Pythons may run it
        if self.first_step_s is not None:
            more["first_step_s"] = self.first_step_s
        told = {"rows": self.rows, "tokens": self.tokens, "work_s": wall, "work_cpu_s": cpu, "first_s": self.first_s}
        print(json.dumps(told | more | {"versions": versions(packages)}))  # noqa: T201
        sys.stdout.flush()


def versions(packages):
    """Versions of those that are installed."""
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
