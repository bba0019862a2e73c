//! Limits the log lines that other hosts can cause.

use super::error::RejectionCode;
use rt::time::{Duration, Instant};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The minimum interval between lines with the same code about the same address.
const EVERY: Duration = Duration::from_secs(60);
/// The maximum number of lines within that interval.
const REMEMBERED: usize = 256;

/// The recent log lines.
#[derive(Debug, Default)]
pub(super) struct PeerLogThrottle {
    logged: BTreeMap<(u8, IpAddr), Instant>,
}

impl PeerLogThrottle {
    /// Whether to log now.
    pub fn is_due(&mut self, code: RejectionCode, about: IpAddr, now: Instant) -> bool {
        self.logged.retain(|_, logged| now.saturating_duration_since(*logged) < EVERY);
        // A full map means an attack or a scan, and enough addresses are logged.
        if self.logged.len() >= REMEMBERED || self.logged.contains_key(&(code as u8, about)) {
            return false;
        }
        self.logged.insert((code as u8, about), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejections_are_logged_once_a_minute_for_a_bounded_peer_set() {
        let mut throttle = PeerLogThrottle::default();
        let now = rt::time::now();
        let about = |n: u32| IpAddr::from((0x7f00_0000 + n).to_be_bytes());
        assert!(throttle.is_due(RejectionCode::Garbage, about(1), now));
        assert!(!throttle.is_due(RejectionCode::Garbage, about(1), now + Duration::from_secs(59)));
        assert!(throttle.is_due(RejectionCode::Cluster, about(1), now));
        assert!(throttle.is_due(RejectionCode::Garbage, about(1), now + Duration::from_secs(61)));
        let later = now + Duration::from_secs(200);
        let logged = (0..1000).filter(|n| throttle.is_due(RejectionCode::Garbage, about(*n), later)).count();
        assert_eq!(logged, REMEMBERED);
    }
}
