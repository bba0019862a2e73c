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
import pathlib
import select
import subprocess
import sys
import threading
import time

STEP = 0.002  # seconds of each sleep
LATE_MS = 2.0  # a sleep that is longer by so much was disturbed
# A second is undisturbed if other virtual machines had our processors for at most FEW_STOLEN ms of
# it, and the machine stood still for at most FEW_LATE ms at a time. On some machines, a kernel
# thread (DAMON) looks for idle memory, and neither the load nor the server runs on its core then.
# Where the limit was chosen, it took 6 to 15 ms of each second, and at times up to 40. A second in
# which it takes more than FEW_DAEMON ms does not count.
FEW_STOLEN, FEW_LATE, FEW_DAEMON = 10, 3.0, 20.0
DAEMON = "kdamond"


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


def stolen():
    """The milliseconds since boot for which other virtual machines had our processors."""
    steal = int(pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[8])
    return steal * 1000 // os.sysconf("SC_CLK_TCK")


def daemons():
    """The files with the times of the kernel threads that look for idle memory."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if (process / "comm").read_text().startswith(DAEMON):
                found.append(process / "schedstat")
        except OSError:
            pass  # the process has ended
    return found


class Watch:
    """Which seconds beside a load were undisturbed. Create it before the load, and call `mark` at
    the load's start and at the end of each second."""

    def __init__(self):
        self.witness, self.stolen, self.daemon, self.daemons = Witness(), [], [], daemons()

    def mark(self):
        self.stolen.append(stolen())
        # The first number is the time on a processor in nanoseconds.
        used = sum(int(times.read_text().split()[0]) for times in self.daemons)
        self.daemon.append(used / 1e6)

    def end(self, began):
        """Whether each second counts. `began`: the Unix time of the first mark. The requests that
        waited are answered in the second after."""
        self.witness.close()
        seconds = list(zip(self.stolen, self.stolen[1:]))
        late = [self.witness.latest(began + n, began + n + 1) for n in range(len(seconds))]
        daemon = [later - sooner for sooner, later in zip(self.daemon, self.daemon[1:])]
        self.daemon_ms = round(max(daemon, default=0.0), 1)
        self.stolen_ms = self.stolen[-1] - self.stolen[0]
        self.latest_ms = max(late) if self.witness.works else None
        few = [
            later - sooner <= FEW_STOLEN and pause <= FEW_LATE and used <= FEW_DAEMON
            for (sooner, later), pause, used in zip(seconds, late, daemon)
        ]
        return [now and before for before, now in zip([True] + few, few)]


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
