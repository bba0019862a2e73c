/* A wall clock that is CLOCK_OFFSET seconds ahead, for one process: loaded before libc by tests/cluster/test_bad_days.py. */

#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    const char *offset = getenv("CLOCK_OFFSET");
    if (result == 0 && offset && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        now->tv_sec += atol(offset);
    }
    return result;
}
