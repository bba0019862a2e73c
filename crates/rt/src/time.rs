//! The clock of a shard: real in production, simulated under `rt::sim`.
//!
//! `Instant` is for durations and deadlines, `wall_*` for timestamps that leave the process.
//! Outside a shard the wall functions read the real clock.

use crate::ctx;
use pin_project_lite::pin_project;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
pub use std::time::Duration;
pub use tokio::time::Instant;
use tokio::time::Sleep;

/// The time limit of a future has passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed;

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("timed out")
    }
}

impl std::error::Error for Elapsed {}

impl From<Elapsed> for std::io::Error {
    fn from(elapsed: Elapsed) -> Self {
        Self::new(std::io::ErrorKind::TimedOut, elapsed)
    }
}

/// The current instant.
#[inline]
pub fn now() -> Instant {
    #[cfg(feature = "sim")]
    if let Some(simulated) = ctx::try_with(|c| (!c.clock.is_real()).then(|| c.clock.coarse())).flatten() {
        return simulated;
    }
    Instant::now()
}

/// The instant at which the running task was last resumed. Costs no clock read. At most one poll
/// old.
#[inline]
pub fn coarse_now() -> Instant {
    ctx::try_with(|c| c.clock.coarse()).unwrap_or_else(Instant::now)
}

/// Microseconds since 1970-01-01 UTC.
pub fn wall_micros() -> i64 {
    (wall_nanos() / 1_000) as i64
}

/// Seconds since 1970-01-01 UTC.
pub fn wall_seconds() -> i64 {
    (wall_nanos() / 1_000_000_000) as i64
}

/// Nanoseconds since 1970-01-01 UTC.
pub fn wall_nanos() -> i128 {
    ctx::try_with(|c| c.clock.wall_nanos()).unwrap_or_else(crate::clock::real_wall_nanos)
}

/// Waits for `duration`. The timers tick in milliseconds.
pub async fn sleep(duration: Duration) {
    tokio::time::sleep(duration).await;
}

/// Waits until `deadline`; returns at once if it has passed.
pub async fn sleep_until(deadline: Instant) {
    tokio::time::sleep_until(deadline).await;
}

/// Runs `future` for at most `duration`, then drops it. A future that is ready at its first poll
/// creates no timer.
pub fn timeout<F: Future>(duration: Duration, future: F) -> Timeout<F> {
    Timeout { future, limit: Limit::After(duration), timer: None }
}

/// Runs `future` until `deadline`, then drops it. A future that is ready at its first poll causes
/// no clock read.
pub fn timeout_at<F: Future>(deadline: Instant, future: F) -> Timeout<F> {
    Timeout { future, limit: Limit::At(deadline), timer: None }
}

#[derive(Clone, Copy)]
enum Limit {
    After(Duration),
    At(Instant),
}

pin_project! {
    /// A future with a time limit; created by [`timeout`] and [`timeout_at`]. Not an `async fn`,
    /// which would hold its argument twice: requests nest such futures.
    #[must_use = "a future does nothing unless awaited"]
    pub struct Timeout<F> {
        #[pin]
        future: F,
        limit: Limit,
        #[pin]
        timer: Option<Sleep>,
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        if let Poll::Ready(out) = this.future.poll(cx) {
            return Poll::Ready(Ok(out));
        }
        if this.timer.is_none() {
            this.timer.set(Some(match *this.limit {
                Limit::After(duration) => tokio::time::sleep(duration),
                Limit::At(deadline) => tokio::time::sleep_until(deadline),
            }));
        }
        match this.timer.as_pin_mut() {
            Some(timer) => timer.poll(cx).map(|()| Err(Elapsed)),
            None => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_costs_little_beside_the_future_itself() {
        let size = |bytes: &[u8; 4096]| size_of_val(&timeout(Duration::ZERO, std::future::ready(*bytes)));
        assert!(size(&[0; 4096]) < 4096 + 256);
    }

    #[test]
    fn timeouts_end_what_waits_and_only_that() {
        crate::block_on(async {
            assert_eq!(timeout(Duration::ZERO, async { 1 }).await, Ok(1));
            let before = now();
            assert_eq!(timeout(Duration::from_millis(10), std::future::pending::<()>()).await, Err(Elapsed));
            assert!(before.elapsed() >= Duration::from_millis(10));
            assert_eq!(timeout(Duration::from_secs(60), sleep(Duration::from_millis(1))).await, Ok(()));
            assert_eq!(timeout_at(before, std::future::pending::<()>()).await, Err(Elapsed));
            assert_eq!(timeout_at(before, async { 2 }).await, Ok(2), "a ready result is returned, however late");
            assert!(coarse_now() <= now() && wall_micros() / 1_000_000 >= wall_seconds() - 1);
        });
    }
}
