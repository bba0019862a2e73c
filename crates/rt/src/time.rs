//! The clock of a shard: real in production, simulated under `rt::sim`.
//!
//! `Instant` is for durations and deadlines, `wall_*` for timestamps that leave the process. Outside a shard the wall
//! functions read the real clock.

use crate::ctx;
use std::future::Future;
pub use std::time::Duration;
pub use tokio::time::Instant;
pub use tokio::time::error::Elapsed;

/// The current instant.
#[inline]
pub fn now() -> Instant {
    Instant::now()
}

/// The instant at which the running task was last resumed: costs no clock read. At most one poll old.
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

/// Waits until `deadline`; returns at once when it has passed.
pub async fn sleep_until(deadline: Instant) {
    tokio::time::sleep_until(deadline).await;
}

/// Runs `future` for at most `duration`, then drops it. A future that is ready in its first poll never makes a timer.
pub async fn timeout<F: Future>(duration: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = std::pin::pin!(future);
    let first = std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx))).await;
    match first {
        std::task::Poll::Ready(out) => Ok(out),
        std::task::Poll::Pending => tokio::time::timeout(duration, future).await,
    }
}
