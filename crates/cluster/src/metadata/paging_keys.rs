//! The keys that authenticate paging states. They are part of the metadata, so that every shard and
//! node accepts the states of all others, even after a restart.
//!
//! The newest key signs. A key is replaced when it reaches the rotation period, and dropped once
//! all states that it can have signed have expired. The rules are pure ([`due`]). [`PagingKeys`]
//! holds the prepared keys of a snapshot. A task on shard 0 follows the rules ([`keep`]). A secret
//! must never be logged.

use super::change::change;
use super::definition::Op;
use super::service::MetadataService;
use hmac::{Hmac, Mac};
use rt::shard::PerShard;
use rt::time::Duration;
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::convert::Infallible;
use std::fmt;

/// The message authentication code of a paging state.
pub type PagingMac = Hmac<Sha256>;

/// A key.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PagingKey {
    /// Its number; the newest key has the highest.
    pub id: u32,
    /// The secret.
    pub secret: [u8; 32],
    /// When it was created, in seconds since the epoch.
    pub created: i64,
}

impl fmt::Debug for PagingKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PagingKey").field("id", &self.id).field("created", &self.created).finish_non_exhaustive()
    }
}

/// The lifetimes of states and keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PagingKeyPolicy {
    /// An older state is refused.
    pub expiry: Duration,
    /// An older key is replaced.
    pub rotation: Duration,
}

impl Default for PagingKeyPolicy {
    fn default() -> Self {
        PagingKeyPolicy { expiry: Duration::from_secs(24 * 3600), rotation: Duration::from_secs(24 * 3600) }
    }
}

/// The keys of a snapshot, prepared for use.
#[derive(Clone, Default)]
pub struct PagingKeys(Vec<(PagingKey, PagingMac)>);

impl fmt::Debug for PagingKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl PagingKeys {
    /// The keys, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &PagingKey> {
        self.0.iter().map(|(key, _)| key)
    }

    /// The number of the newest key, and its MAC for signing.
    pub fn newest(&self) -> Option<(u32, &PagingMac)> {
        self.0.last().map(|(key, mac)| (key.id, mac))
    }

    /// The MAC that verifies signatures of a key.
    pub fn get(&self, id: u32) -> Option<&PagingMac> {
        self.0.iter().rev().find(|(key, _)| key.id == id).map(|(_, mac)| mac)
    }

    /// Adds a key, replacing one of the same number.
    pub fn put(&mut self, key: PagingKey) {
        self.drop_key(key.id);
        let mac = PagingMac::new_from_slice(&key.secret).expect("keys of any length are taken");
        let at = self.0.partition_point(|(other, _)| other.id < key.id);
        self.0.insert(at, (key, mac));
        debug_assert!(self.0.is_sorted_by(|(a, _), (b, _)| a.id < b.id), "keys are in order, each once");
    }

    /// Removes a key.
    pub fn drop_key(&mut self, id: u32) {
        self.0.retain(|(key, _)| key.id != id);
    }
}

/// A key is kept for this many seconds beyond the lifetime of its states, because the nodes' clocks
/// may differ.
const SLACK: i64 = 300;

/// The operations that are due at `now` (in seconds since the epoch): a new key, keys to drop, or
/// none.
pub fn due(keys: &PagingKeys, policy: PagingKeyPolicy, now: i64, secret: impl FnOnce() -> [u8; 32]) -> Vec<Op> {
    let (expiry, rotation) = (policy.expiry.as_secs() as i64, policy.rotation.as_secs() as i64);
    let mut ops = Vec::new();
    let newest = keys.iter().next_back();
    // A key from the future was created by a clock that has been corrected since.
    let is_fresh = newest.is_some_and(|key| now.saturating_sub(key.created).abs() < rotation);
    if !is_fresh {
        let id = newest.map_or(1, |key| key.id + 1);
        ops.push(Op::PutPagingKey(PagingKey { id, secret: secret(), created: now }));
    }
    for (key, next) in keys.iter().zip(keys.iter().skip(1)) {
        if now.saturating_sub(next.created) > expiry.saturating_add(SLACK) {
            ops.push(Op::DropPagingKey(key.id));
        }
    }
    ops
}

/// Generates a secret.
pub(super) fn fresh_secret() -> [u8; 32] {
    let mut secret = [0; 32];
    rt::random::secret(&mut secret);
    secret
}

/// Follows the policy until the node stops. On shard 0.
pub async fn keep(services: PerShard<MetadataService>, policy: PagingKeyPolicy) {
    /// The longest interval between checks; a change of the wall clock wakes no task.
    const LOOK: Duration = Duration::from_secs(3600);
    let pause = policy.rotation.min(LOOK).max(Duration::from_secs(1));
    loop {
        let Some(service) = services.try_get() else { return };
        let now = rt::time::wall_seconds();
        if service.is_leader() && !due(&service.current().paging_keys, policy, now, || [0; 32]).is_empty() {
            let made = change::<(), Infallible, _>(services, move |metadata, _| {
                Ok((due(&metadata.paging_keys, policy, now, fresh_secret), ()))
            });
            if let Err(error) = made.await {
                tracing::warn!(%error, "the keys of paging states could not be changed; retrying later");
            }
        }
        drop(service);
        if rt::time::timeout(pause, rt::shard::stopping().cancelled()).await.is_ok() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Metadata;

    const HOUR: i64 = 3600;

    fn ids(keys: &PagingKeys) -> Vec<u32> {
        keys.iter().map(|key| key.id).collect()
    }

    fn follow(keys: &mut PagingKeys, policy: PagingKeyPolicy, now: i64) {
        for op in due(keys, policy, now, || [7; 32]) {
            match op {
                Op::PutPagingKey(key) => keys.put(key),
                Op::DropPagingKey(id) => keys.drop_key(id),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_key_outlives_every_state_it_signed() {
        let policy =
            PagingKeyPolicy { expiry: Duration::from_secs(24 * 3600), rotation: Duration::from_secs(6 * 3600) };
        let mut keys = PagingKeys::default();
        let mut last_signed: Vec<(u32, i64)> = Vec::new();
        for hour in 0..200 {
            let now = 1_700_000_000 + hour * HOUR;
            follow(&mut keys, policy, now);
            let (newest, _) = keys.newest().expect("there is always one");
            last_signed.retain(|(id, _)| *id != newest);
            last_signed.push((newest, now));
            for (id, signed) in &last_signed {
                assert!(keys.get(*id).is_some() || now - signed > 24 * HOUR, "key {id} went too early");
            }
            assert!(ids(&keys).len() <= 7, "keys pile up: {:?}", ids(&keys));
        }
        assert!(ids(&keys)[0] > 20);
    }

    #[test]
    fn a_clock_that_was_wrong_does_not_stop_rotation() {
        let policy = PagingKeyPolicy::default();
        let mut keys = PagingKeys::default();
        follow(&mut keys, policy, 4_000_000_000);
        follow(&mut keys, policy, 1_700_000_000);
        assert_eq!(ids(&keys), [1, 2]);
        follow(&mut keys, policy, 1_700_000_000 + 25 * HOUR);
        assert_eq!(keys.newest().map(|(id, _)| id), Some(3));
    }

    #[test]
    fn a_snapshot_of_the_metadata_has_the_keys() {
        let key = |id| PagingKey { id, secret: [id as u8; 32], created: 7 };
        let ops = [Op::PutPagingKey(key(1)), Op::PutPagingKey(key(2)), Op::PutPagingKey(key(3)), Op::DropPagingKey(2)];
        let metadata = Metadata::empty().with(&ops).expect("they fit");
        let again = Metadata::empty().with(&metadata.as_ops(|_| false)).expect("they fit");
        assert_eq!(again.paging_keys.iter().cloned().collect::<Vec<_>>(), [key(1), key(3)]);
    }

    #[test]
    fn a_secret_is_not_shown() {
        let key = PagingKey { id: 1, secret: [0xAB; 32], created: 5 };
        let shown = format!("{key:?} {:?}", Op::PutPagingKey(key.clone()));
        assert!(!shown.contains("171") && !shown.to_lowercase().contains("ab, "), "{shown}");
    }
}
