//! Whether the thread of a shard that shares its CPU may preempt other threads when it wakes up.
//!
//! Several shards on one CPU send each other messages. With the kernel's default policy, a message
//! can interrupt its sender. A busy shard therefore preempts no other thread (`SCHED_BATCH`). It
//! works until nothing is left, or its time slice ends, and the next shard finds many messages at
//! once. With three nodes on one CPU, the shards were interrupted about a tenth as often, and a
//! backlog that delays reads by 100 ms or more came about less often.
//!
//! A shard with little work preempts others. It would otherwise wait for the end of the time slice
//! of a program that computes, some milliseconds for each message.

use std::cell::Cell;
use std::io;
use std::time::Duration;
use tokio::time::Instant;

/// The interval at which the CPU time of the thread is read.
const EVERY: Duration = Duration::from_millis(100);
/// A shard that uses this part of a CPU is busy.
const BUSY: f64 = 0.2;
/// A busy shard that uses less than this part of a CPU is not busy any more.
const NOT_BUSY: f64 = 0.1;

/// The scheduling policy of a shard's thread.
pub(crate) struct Preemption {
    looked: Cell<Instant>,
    /// The CPU time of the thread at that time.
    used: Cell<Duration>,
    is_batch: Cell<bool>,
}

impl Preemption {
    /// For this thread. None: the operator has chosen a scheduling policy, which is kept.
    pub fn of_this_thread() -> Option<Preemption> {
        let is_default = matches!(policy(), Ok(libc::SCHED_OTHER));
        is_default.then(|| Preemption {
            looked: Cell::new(Instant::now()),
            used: Cell::new(cpu_time()),
            is_batch: Cell::new(false),
        })
    }

    /// Changes the policy of this thread if the shard has become busy, or is not busy any more.
    #[inline]
    pub fn update_if_due(&self, now: Instant) {
        if now - self.looked.get() >= EVERY {
            self.update(now);
        }
    }

    #[cold]
    fn update(&self, now: Instant) {
        let (elapsed, used) = (now - self.looked.replace(now), cpu_time());
        let part = used.saturating_sub(self.used.replace(used)).as_secs_f64() / elapsed.as_secs_f64();
        let is_batch = part >= if self.is_batch.get() { NOT_BUSY } else { BUSY };
        if is_batch != self.is_batch.replace(is_batch)
            && let Err(error) = set_policy(if is_batch { libc::SCHED_BATCH } else { libc::SCHED_OTHER })
        {
            tracing::debug!(%error, "cannot change the scheduling policy of the shard's thread");
        }
    }
}

#[allow(unsafe_code)]
fn policy() -> io::Result<libc::c_int> {
    // SAFETY: 0 is this thread; no memory is passed.
    check(unsafe { libc::sched_getscheduler(0) })
}

#[allow(unsafe_code)]
fn set_policy(policy: libc::c_int) -> io::Result<()> {
    // SAFETY: 0 is this thread; the parameter outlives the call, which only reads it.
    unsafe {
        let parameter: libc::sched_param = std::mem::zeroed();
        check(libc::sched_setscheduler(0, policy, &parameter)).map(drop)
    }
}

/// The CPU time of this thread.
#[allow(unsafe_code)]
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to `time`, which outlives it. It cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a test on a thread with the default policy, whatever the policy of the tests is.
    fn on_new_thread(run: impl FnOnce() + Send + 'static) {
        let thread = std::thread::spawn(|| {
            set_policy(libc::SCHED_OTHER).expect("it is the default");
            run();
        });
        thread.join().expect("it does not panic");
    }

    #[test]
    fn a_busy_shard_preempts_no_other_thread() {
        on_new_thread(|| {
            let preemption = Preemption::of_this_thread().expect("the policy is the default");
            let looked = preemption.looked.get();
            while cpu_time() < preemption.used.get() + EVERY / 2 {
                std::hint::spin_loop();
            }
            preemption.update_if_due(looked + EVERY - Duration::from_nanos(1));
            assert_eq!(policy().expect("a policy"), libc::SCHED_OTHER, "not before the interval has passed");
            // Half of the time, whatever else runs on this machine.
            preemption.update_if_due(looked + EVERY);
            assert_eq!(policy().expect("a policy"), libc::SCHED_BATCH);
            preemption.update_if_due(looked + 3000 * EVERY);
            assert_eq!(policy().expect("a policy"), libc::SCHED_OTHER, "it has used almost none of that time");
        });
    }

    #[test]
    fn the_policy_of_the_operator_is_kept() {
        on_new_thread(|| {
            set_policy(libc::SCHED_IDLE).expect("any thread may choose it");
            assert!(Preemption::of_this_thread().is_none());
        });
    }
}
