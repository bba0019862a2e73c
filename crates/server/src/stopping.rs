//! The time limit of a stop: when it has passed, the process logs what it still waited for, and ends.
//!
//! Ending like that loses nothing that was acknowledged, as kill -9 does not: the next start replays the commitlog.

use rt::side_thread::{self, SideThread};
use rt::time::Duration;
use std::sync::{Arc, Mutex, PoisonError};

/// The exit status of a process that was cut off.
const CUT_OFF: i32 = 1;

/// What a stop is doing, for the log line that says what it was cut off in.
#[derive(Clone, Debug, Default)]
pub struct Phase(Arc<Mutex<&'static str>>);

impl Phase {
    /// From now on the stop does this.
    pub fn enter(&self, phase: &'static str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = phase;
        tracing::debug!(phase, "stopping");
    }

    fn get(&self) -> &'static str {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stop under way. The limit holds until this is dropped.
pub struct Stopping {
    /// What the stop is doing.
    pub phase: Phase,
    _clock: Option<SideThread>,
}

impl Stopping {
    /// Begins a stop that may take `limit`.
    pub fn begin(limit: Duration) -> Stopping {
        let phase = Phase::default();
        let known = phase.clone();
        let clock = side_thread::start("stop-limit", move || async move {
            rt::time::sleep(limit).await;
            let phase = known.get();
            tracing::error!(phase, ?limit, "the node did not stop in time (shutdown_timeout_in_ms): the process ends");
            std::process::exit(CUT_OFF);
        });
        let clock = clock.map_err(|error| tracing::warn!(%error, "the stop has no time limit")).ok();
        Stopping { phase, _clock: clock }
    }
}
