"""Finds the seconds in which the machine itself stood still.

A measured process that waits cannot tell whether its server was slow, or whether the hypervisor had
given the processor to another virtual machine. `Witness` runs one process on each processor, in the
real-time class, so that it waits for nothing that runs in this machine. It sleeps 2 ms at a time
and reports by how much each sleep was too long. The kernel's `steal` time has a resolution of 10 ms
and misses pauses in which the host itself stood still.

A process: `python3 witness.py CORE` prints one line `UNIX_TIME LATE_MS` for each late sleep, until
its input is closed.
"""

import os
import select
import subprocess
import sys
import threading
import time

STEP = 0.002  # seconds of each sleep
LATE_MS = 2.0  # a sleep that is longer by so much was disturbed


class Witness:
    """Late sleeps on all processors until `close`. Without the right to real-time scheduling there
    are none, and `works` is false."""

    def __init__(self):
        self.late = []  # (Unix time, milliseconds)
        command = [sys.executable, os.path.abspath(__file__)]
        self.processes = [
            subprocess.Popen(
                [*command, str(core)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for core in sorted(os.sched_getaffinity(0))
        ]
        self.works = all([process.stdout.readline() == "ready\n" for process in self.processes])
        self.readers = [
            threading.Thread(target=self.read, args=(process,), daemon=True)
            for process in self.processes
        ]
        for reader in self.readers:
            reader.start()

    def read(self, process):
        for line in process.stdout:
            when, late = line.split()
            self.late.append((float(when), float(late)))

    def latest(self, since, until):
        """The longest delay in milliseconds between two Unix times. 0 if there was none."""
        return max((late for when, late in list(self.late) if since <= when < until), default=0.0)

    def close(self):
        for process in self.processes:
            process.stdin.close()
            process.wait(10)
        for reader in self.readers:
            reader.join(10)


def main():
    os.sched_setaffinity(0, {int(sys.argv[1])})
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    except OSError as error:
        print(f"no real-time scheduling: {error}", flush=True)
        return
    print("ready", flush=True)
    began = time.monotonic()
    while not select.select([sys.stdin], [], [], STEP)[0]:
        now = time.monotonic()
        late = (now - began - STEP) * 1000
        if late > LATE_MS:
            print(f"{time.time():.3f} {late:.1f}", flush=True)
        began = time.monotonic()


if __name__ == "__main__":
    main()
