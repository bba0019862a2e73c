//! The refusals by rate limits that a shard remembers, to find clients that try a partition again
//! too early. Fixed memory, whatever the number of clients and partitions.

use rt::hash::FastHasher;
use rt::time::{Duration, Instant};
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;

/// The refusals that are remembered: 128 KiB.
const PLACES: usize = 4_096;
/// The places that a refusal may have. The one that ends first is replaced.
const PROBES: usize = 8;

/// The last refusal of a partition on a connection. Times are in nanoseconds since
/// [`LastRefusals::start`].
#[derive(Clone, Copy, Debug, Default)]
struct LastRefusal {
    /// A hash of the client and the partition.
    key: u64,
    at: u64,
    /// When the client should try again. 0: the place is free.
    until: u64,
    /// Early retries in the window of this number.
    retries: u32,
    window: u32,
}

/// A refusal, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refusal {
    /// The client.
    pub peer: SocketAddr,
    /// A hash of the partition.
    pub partition: u32,
    /// When its request was received.
    pub came: Instant,
    /// The present.
    pub now: Instant,
    /// How long the refusal asks the client to wait.
    pub retry_after: Duration,
    /// The number of the window.
    pub window: u32,
}

/// The last refusals on a shard.
#[derive(Debug)]
pub(super) struct LastRefusals {
    start: Instant,
    places: Box<[LastRefusal]>,
}

impl LastRefusals {
    pub fn new(start: Instant) -> LastRefusals {
        LastRefusals { start, places: vec![LastRefusal::default(); PLACES].into() }
    }

    /// Whether a refusal is beyond what an obedient client causes: it is an early retry, and there
    /// were `at_once` others in its window.
    pub fn is_excess(&mut self, refusal: &Refusal, at_once: u32) -> bool {
        let nanos = |at: Instant| at.saturating_duration_since(self.start).as_nanos() as u64;
        let (came, now) = (nanos(refusal.came), nanos(refusal.now));
        let mut hasher = FastHasher::default();
        (refusal.peer, refusal.partition).hash(&mut hasher);
        let key = hasher.finish();
        let first = key as usize % PLACES;
        let mut oldest = first;
        for at in (first..first + PROBES).map(|at| at % PLACES) {
            let last = &mut self.places[at];
            if last.key == key && now < last.until {
                if last.window != refusal.window {
                    (last.window, last.retries) = (refusal.window, 0);
                }
                // It was not sent before the client knew of the refusal.
                let is_retry = came > last.at;
                last.retries += u32::from(is_retry);
                return is_retry && last.retries > at_once;
            }
            if self.places[at].until < self.places[oldest].until {
                oldest = at;
            }
        }
        let until = now + refusal.retry_after.as_nanos() as u64;
        self.places[oldest] = LastRefusal { key, at: now, until, retries: 0, window: refusal.window };
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const AT_ONCE: u32 = 100;

    fn refusal(port: u16, partition: u32, now: Instant) -> Refusal {
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Refusal { peer, partition, came: now, now, retry_after: Duration::from_secs(1), window: 1 }
    }

    #[test]
    fn early_retries_are_counted_per_client_and_partition() {
        let start = rt::time::now();
        let mut last = LastRefusals::new(start);
        let retries = u64::from(AT_ONCE) + 50;
        let mut excess = [[0u64; 100]; 4];
        for at in 0..=retries {
            for (port, of_client) in excess.iter_mut().enumerate() {
                for (partition, count) in of_client.iter_mut().enumerate() {
                    let now = start + Duration::from_micros(at + 1);
                    *count += u64::from(last.is_excess(&refusal(port as u16, partition as u32, now), AT_ONCE));
                }
            }
        }
        assert!(excess.as_flattened().iter().all(|count| *count == 50), "{excess:?}");
    }

    #[test]
    fn a_client_that_waits_or_did_not_know_is_obedient() {
        let start = rt::time::now();
        let mut last = LastRefusals::new(start);
        for at in 1..1_000 {
            let now = start + Duration::from_secs(at);
            assert!(!last.is_excess(&refusal(1, 1, now), AT_ONCE), "it waited");
        }
        let first = refusal(2, 1, start + Duration::from_secs(5));
        for _ in 0..1_000 {
            assert!(!last.is_excess(&first, AT_ONCE), "it was sent before the answer of the first");
        }
    }

    #[test]
    fn each_window_renews_what_is_answered_at_once() {
        let start = rt::time::now();
        let mut last = LastRefusals::new(start);
        let retry = |at: u32, window| Refusal {
            retry_after: Duration::from_secs(60),
            window,
            ..refusal(1, 1, start + Duration::from_micros(at.into()))
        };
        let mut count = |at, window| (0..150u32).filter(|n| last.is_excess(&retry(at + n, window), AT_ONCE)).count();
        assert_eq!((count(1, 1), count(1_000, 2), count(2_000, 2)), (49, 50, 150));
    }
}
