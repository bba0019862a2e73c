//! Limits the bytes per second that all compactions of a shard write together.

use rt::sync::Cancel;
use rt::time::{Duration, Instant};
use std::cell::Cell;

/// See the module.
#[derive(Default)]
pub(super) struct Throttle {
    /// When the budget for all bytes written so far is earned.
    free_at: Cell<Option<Instant>>,
}

impl Throttle {
    /// Accounts for written bytes, and waits until more may be written. `limit` is in bytes per
    /// second; 0 for none.
    pub async fn wrote(&self, bytes: usize, limit: u64, cancel: &Cancel) {
        if limit == 0 {
            return;
        }
        let now = rt::time::now();
        let begin = self.free_at.get().map_or(now, |free_at| free_at.max(now));
        let free_at = begin + Duration::from_secs_f64(bytes as f64 / limit as f64);
        self.free_at.set(Some(free_at));
        let _ = cancel.unless(rt::time::sleep_until(free_at)).await;
    }
}
