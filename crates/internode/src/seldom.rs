//! Log lines that others can cause, kept to now and then.

use super::error::RejectionCode;
use rt::time::{Duration, Instant};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// How often the same is said about the same address.
const AGAIN: Duration = Duration::from_secs(60);
/// How many addresses are remembered.
const REMEMBERED: usize = 256;

/// What was said lately.
#[derive(Debug, Default)]
pub(super) struct Seldom {
    said: BTreeMap<(u8, IpAddr), Instant>,
}

impl Seldom {
    /// Whether to say it now.
    pub fn may_say(&mut self, code: RejectionCode, about: IpAddr, now: Instant) -> bool {
        self.said.retain(|_, said| now.saturating_duration_since(*said) < AGAIN);
        // With so many addresses it is an attack or a scan, of which enough was said.
        if self.said.len() >= REMEMBERED || self.said.contains_key(&(code as u8, about)) {
            return false;
        }
        self.said.insert((code as u8, about), now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_said_once_a_minute_and_not_about_everyone() {
        let mut seldom = Seldom::default();
        let now = rt::time::now();
        let about = |n: u32| IpAddr::from((0x7f00_0000 + n).to_be_bytes());
        assert!(seldom.may_say(RejectionCode::Garbage, about(1), now));
        assert!(!seldom.may_say(RejectionCode::Garbage, about(1), now + Duration::from_secs(59)));
        assert!(seldom.may_say(RejectionCode::Cluster, about(1), now));
        assert!(seldom.may_say(RejectionCode::Garbage, about(1), now + Duration::from_secs(61)));
        let later = now + Duration::from_secs(200);
        let said = (0..1000).filter(|n| seldom.may_say(RejectionCode::Garbage, about(*n), later)).count();
        assert_eq!(said, REMEMBERED);
    }
}
