//! The text that shows operators what a node waits for while it searches for its cluster.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The text about what a search waits for. Can be read on any thread.
#[derive(Clone, Debug, Default)]
pub struct SearchProgress(Arc<Mutex<Option<String>>>);

impl SearchProgress {
    /// The text about what the search waits for. None: no search runs.
    pub fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets what the search waits for.
    pub fn set(&self, waits_for: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = waits_for;
    }
}

/// The seeds that a search waits for, each with the reason.
pub(super) fn waits_for(silent: &[SocketAddr], reasons: &BTreeMap<SocketAddr, String>) -> String {
    let seed = |address: &SocketAddr| match reasons.get(address) {
        Some(why) => format!("{address} ({why})"),
        None => address.to_string(),
    };
    match silent {
        [] => "another node, which creates the cluster: all seeds answer".to_owned(),
        [one] => format!("the seed {}", seed(one)),
        several => format!("the seeds {}", several.iter().map(seed).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_seed_is_named_with_its_reason() {
        let [one, other]: [SocketAddr; 2] = [1, 2].map(|n| ([127, 0, 0, n], 7000).into());
        let reasons = BTreeMap::from([(one, "refused".to_owned()), (other, "no route".to_owned())]);
        assert_eq!(waits_for(&[one], &reasons), "the seed 127.0.0.1:7000 (refused)");
        let both = "the seeds 127.0.0.1:7000 (refused), 127.0.0.2:7000 (no route)";
        assert_eq!(waits_for(&[one, other], &reasons), both);
        assert!(waits_for(&[], &reasons).contains("all seeds answer"));
    }
}
