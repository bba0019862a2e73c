//! The partitions of a memtable in ring order.
//!
//! The tree is keyed by token alone, so that a search touches eight bytes per key; keys that share a token (hardly ever more than
//! one) stand in a list behind it.

use super::partition::Partition;
use bytes::Bytes;
use model::Token;
use model::key::DecoratedKey;
use model::range::PartitionRange;
use std::collections::BTreeMap;

#[derive(Default)]
pub(crate) struct Partitions {
    by_token: BTreeMap<Token, Slot>,
    len: usize,
}

pub(crate) struct Entry {
    pub key: Bytes,
    pub partition: Partition,
}

enum Slot {
    One(Entry),
    /// By key.
    Several(Vec<Entry>),
}

/// What a partition costs in the tree (three quarters full), beside what it holds.
pub(super) const SLOT: usize = std::mem::size_of::<(Token, Slot)>() * 4 / 3;

impl Slot {
    fn entries(&self) -> &[Entry] {
        match self {
            Slot::One(entry) => std::slice::from_ref(entry),
            Slot::Several(entries) => entries,
        }
    }

    fn entries_mut(&mut self) -> &mut [Entry] {
        match self {
            Slot::One(entry) => std::slice::from_mut(entry),
            Slot::Several(entries) => entries,
        }
    }
}

impl Partitions {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub fn get(&self, key: &DecoratedKey) -> Option<&Partition> {
        let entries = self.by_token.get(&key.token)?.entries();
        entries.iter().find(|entry| entry.key == key.key).map(|entry| &entry.partition)
    }

    #[inline]
    pub fn get_mut(&mut self, key: &DecoratedKey) -> Option<&mut Partition> {
        let entries = self.by_token.get_mut(&key.token)?.entries_mut();
        entries.iter_mut().find(|entry| entry.key == key.key).map(|entry| &mut entry.partition)
    }

    /// Adds a partition that is not there.
    pub fn insert(&mut self, token: Token, key: Bytes, partition: Partition) {
        self.len += 1;
        let entry = Entry { key, partition };
        match self.by_token.get_mut(&token) {
            None => drop(self.by_token.insert(token, Slot::One(entry))),
            Some(slot) => {
                let mut entries = match std::mem::replace(slot, Slot::Several(Vec::new())) {
                    Slot::One(first) => vec![first],
                    Slot::Several(entries) => entries,
                };
                let at = entries.partition_point(|own| own.key < entry.key);
                entries.insert(at, entry);
                *slot = Slot::Several(entries);
            }
        }
    }

    /// Takes out the partitions of the first token.
    pub fn pop_first(&mut self) -> Option<Vec<Partition>> {
        Some(match self.by_token.pop_first()?.1 {
            Slot::One(entry) => vec![entry.partition],
            Slot::Several(entries) => entries.into_iter().map(|entry| entry.partition).collect(),
        })
    }

    /// Calls `f` with the partitions of a range that come after a key, in order, until it says `false`.
    pub fn for_each(
        &self,
        range: &PartitionRange,
        after: Option<&DecoratedKey>,
        mut f: impl FnMut(Token, &Entry) -> bool,
    ) {
        let (first, last) = (after.map_or(range.start.token, |key| key.token), range.end.token);
        if first > last {
            return;
        }
        for (&token, slot) in self.by_token.range(first..=last) {
            for entry in slot.entries() {
                if token == first || token == last {
                    let is_past = after.is_none_or(|after| (after.token, &after.key) < (token, &entry.key));
                    if !is_past
                        || range.start.cmp_key(token, &entry.key).is_gt()
                        || range.end.cmp_key(token, &entry.key).is_lt()
                    {
                        continue;
                    }
                }
                if !f(token, entry) {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::key::RingCut;
    use proptest::prelude::*;

    fn cut() -> impl Strategy<Value = RingCut> {
        (0i64..6, prop::option::of(0u8..4), any::<bool>()).prop_map(|(token, key, after)| RingCut {
            token: Token(token),
            key: key.map(|key| Bytes::from(vec![key])),
            after,
        })
    }

    proptest! {
        #[test]
        fn ranges_of_colliding_tokens(keys in prop::collection::btree_set((0i64..6, 0u8..4), 0..20), start in cut(), end in cut(), after in prop::option::of((0i64..6, 0u8..4))) {
            let decorated = |(token, key): (i64, u8)| DecoratedKey { token: Token(token), key: Bytes::from(vec![key]) };
            let mut partitions = Partitions::default();
            for &(token, key) in keys.iter().rev() {
                partitions.insert(Token(token), Bytes::from(vec![key]), Partition::new());
            }
            prop_assert_eq!(partitions.len(), keys.len());
            for key in keys.iter().copied() {
                prop_assert!(partitions.get(&decorated(key)).is_some());
            }
            prop_assert!(partitions.get(&decorated((0, 9))).is_none());
            let range = PartitionRange { start, end };
            let after = after.map(decorated);
            let mut found = Vec::new();
            partitions.for_each(&range, after.as_ref(), |token, entry| {
                found.push(DecoratedKey { token, key: entry.key.clone() });
                true
            });
            let wanted: Vec<_> = keys
                .iter()
                .copied()
                .map(decorated)
                .filter(|key| range.contains(key) && after.as_ref().is_none_or(|after| key > after))
                .collect();
            // A reader that has passed a key never asks for a range that begins behind it.
            if after.is_none() || after.as_ref().is_some_and(|after| range.contains(after)) {
                prop_assert_eq!(found, wanted);
            }
        }
    }
}
