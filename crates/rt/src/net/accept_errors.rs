//! Handles errors of an accept loop: a growing pause, and one log line a minute instead of one per
//! error.
//!
//! The usual cause is that the process has no file descriptors left. The kernel then refuses each
//! accept at once, so an accept loop without a pause would keep a core busy and fill the log.

use crate::log_throttle::LogThrottle;
use crate::time::{self, Duration};
use std::io;

/// The pause after the first error; it doubles with each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The errors of one accept loop.
#[derive(Debug)]
pub struct AcceptErrors {
    /// The kind of peer, for the log: "a client".
    peer: &'static str,
    pause: Duration,
    log: LogThrottle,
}

impl AcceptErrors {
    /// A state without errors. `peer` is the kind of peer: "a client".
    pub fn new(peer: &'static str) -> AcceptErrors {
        AcceptErrors { peer, pause: FIRST_PAUSE, log: LogThrottle::default() }
    }

    /// Records an accepted connection: the next pause is short again.
    pub fn accepted(&mut self) {
        self.pause = FIRST_PAUSE;
    }

    /// Logs the error, unless one was logged during the last minute, and pauses.
    pub async fn failed(&mut self, error: &io::Error) {
        if let Some(errors) = self.log.count(time::now()) {
            tracing::warn!(%error, errors, "cannot accept a connection of {}; retrying after a pause", self.peer);
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(LONGEST_PAUSE);
        time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_and_an_accepted_connection_resets_it() {
        crate::block_on(async {
            let mut errors = AcceptErrors::new("a client");
            let error = io::Error::from_raw_os_error(24);
            errors.failed(&error).await;
            errors.failed(&error).await;
            assert_eq!(errors.pause, FIRST_PAUSE * 4);
            errors.accepted();
            assert_eq!(errors.pause, FIRST_PAUSE);
        });
    }
}
