//! Limits the log lines that other hosts can cause by sending bad data.
//!
//! A rejection is logged at most once per minute for each pair of code and address. While 256 such
//! pairs are remembered, nothing else is logged.

use super::error::RejectionCode;
use rt::time::{Duration, Instant};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The time between two lines with the same code and address.
const AGAIN: Duration = Duration::from_secs(60);
/// How many pairs of code and address are remembered.
const REMEMBERED: usize = 256;

/// When each rejection was last logged.
#[derive(Debug, Default)]
pub(super) struct RejectionThrottle {
    logged_at: BTreeMap<(u8, IpAddr), Instant>,
}

impl RejectionThrottle {
    /// Whether the rejection may be logged now. If so, the time is recorded.
    pub fn may_log(&mut self, code: RejectionCode, about: IpAddr, now: Instant) -> bool {
        self.logged_at.retain(|_, at| now.saturating_duration_since(*at) < AGAIN);
        // So many addresses are an attack or a port scan; enough lines have been logged.
        if self.logged_at.len() >= REMEMBERED || self.logged_at.contains_key(&(code as u8, about)) {
            return false;
        }
        self.logged_at.insert((code as u8, about), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_once_a_minute_and_not_about_everyone() {
        let mut throttle = RejectionThrottle::default();
        let now = rt::time::now();
        let about = |n: u32| IpAddr::from((0x7f00_0000 + n).to_be_bytes());
        assert!(throttle.may_log(RejectionCode::Garbage, about(1), now));
        assert!(!throttle.may_log(RejectionCode::Garbage, about(1), now + Duration::from_secs(59)));
        assert!(throttle.may_log(RejectionCode::Cluster, about(1), now));
        assert!(throttle.may_log(RejectionCode::Garbage, about(1), now + Duration::from_secs(61)));
        let later = now + Duration::from_secs(200);
        let logged = (0..1000).filter(|n| throttle.may_log(RejectionCode::Garbage, about(*n), later)).count();
        assert_eq!(logged, REMEMBERED);
    }
}
