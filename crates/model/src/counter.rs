//! Counters: the value of a counter column's cell.
//!
//! The stored value is a *context*. It has a [`Shard`] for each node that ever counted here, under
//! the node's counter id. The counter is the sum of the shards' counts. Only its node changes a
//! shard, and gives each new state a higher clock. So two versions of a context merge by taking the
//! newer state of each shard, and applying a state twice changes nothing.
//!
//! A new state continues the state that the node has stored. A node that has lost that state must
//! no longer count under the same id. Its next state would have the highest clock, and replace the
//! correct sum on all replicas. It begins a shard under a new id instead (`engine::datadir`), and
//! the shard of the earlier id stays part of the sum.
//!
//! Layout, as in `me` sstables, big-endian:
//!
//! ```text
//! i16 n                       number of header entries
//! i16 * n                     index of a shard less 32768; all shards are listed
//! (16 bytes id, i64 clock, i64 count)*    by id, unsigned
//! ```
//!
//! Between the query processor and the node that counts, a cell holds an *update* instead: the 8
//! bytes of the number to add. No context has this length. Updates are never stored: [`merge`] adds
//! two of them, which is not idempotent.
//!
//! Contexts in files of other databases may be damaged or of old forms. They are decoded leniently:
//! shards that a header does not list count like any other.

use crate::id::CounterId;
use bytes::Bytes;
use std::cmp::Ordering;

/// The bytes of a shard.
const SHARD: usize = 32;
/// The bytes of an update.
const UPDATE: usize = 8;

/// The count of one node under one counter id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shard {
    /// The counter id.
    pub id: CounterId,
    /// Higher for each newer state.
    pub clock: i64,
    /// The sum of the node's increments.
    pub count: i64,
}

impl Shard {
    fn read(bytes: &[u8]) -> Option<Shard> {
        let (id, rest) = bytes.split_first_chunk::<16>()?;
        let (clock, rest) = rest.split_first_chunk::<8>()?;
        let count = rest.first_chunk::<8>()?;
        let id = CounterId::from_bytes(*id);
        Some(Shard { id, clock: i64::from_be_bytes(*clock), count: i64::from_be_bytes(*count) })
    }

    fn newer(self, other: Shard) -> Shard {
        if (self.clock, self.count) >= (other.clock, other.count) { self } else { other }
    }
}

/// The number to add, if the value is an update. `None` for a context.
pub fn as_update(value: &[u8]) -> Option<i64> {
    <[u8; UPDATE]>::try_from(value).ok().map(i64::from_be_bytes)
}

/// The value of an update that adds `delta`.
pub fn update(delta: i64) -> Bytes {
    Bytes::copy_from_slice(&delta.to_be_bytes())
}

/// The shards of a context, in order. Empty for malformed bytes.
pub fn shards(value: &[u8]) -> impl Iterator<Item = Shard> + '_ {
    let listed = value.first_chunk::<2>().map_or(0, |n| i16::from_be_bytes(*n).unsigned_abs() as usize);
    let body = value.get(2 + 2 * listed..).unwrap_or_default();
    body.chunks_exact(SHARD).filter_map(Shard::read)
}

/// The shard with this id, if there is one.
pub fn shard_of(value: &[u8], id: CounterId) -> Option<Shard> {
    shards(value).find(|shard| shard.id == id)
}

/// The value of the counter: the sum of its shards, which wraps around at 64 bits.
pub fn total(value: &[u8]) -> i64 {
    match as_update(value) {
        Some(delta) => delta,
        None => shards(value).fold(0, |sum, shard| sum.wrapping_add(shard.count)),
    }
}

/// The context of these shards, which must be in the order of their ids, without duplicates.
pub fn context(shards: &[Shard]) -> Vec<u8> {
    let count = shards.len().min(i16::MAX as usize);
    let mut out = Vec::with_capacity(2 + count * (2 + SHARD));
    out.extend_from_slice(&(count as i16).to_be_bytes());
    for i in 0..count {
        out.extend_from_slice(&(i as i16).wrapping_add(i16::MIN).to_be_bytes());
    }
    for shard in &shards[..count] {
        out.extend_from_slice(shard.id.as_bytes());
        out.extend_from_slice(&shard.clock.to_be_bytes());
        out.extend_from_slice(&shard.count.to_be_bytes());
    }
    out
}

/// Merges two versions of a counter: of contexts the newer state of each shard, of updates the sum.
/// An update next to a context, which should not occur, is dropped.
pub fn merge(a: &[u8], b: &[u8]) -> Vec<u8> {
    match (as_update(a), as_update(b)) {
        (Some(x), Some(y)) => return x.wrapping_add(y).to_be_bytes().to_vec(),
        (Some(_), None) => return b.to_vec(),
        (None, Some(_)) => return a.to_vec(),
        (None, None) if a == b => return a.to_vec(),
        (None, None) => {}
    }
    let (mut a, mut b) = (shards(a).peekable(), shards(b).peekable());
    let mut out = Vec::new();
    loop {
        let order = match (a.peek(), b.peek()) {
            (None, None) => return context(&out),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(x), Some(y)) => x.id.as_bytes().cmp(y.id.as_bytes()),
        };
        out.extend(match order {
            Ordering::Less => a.next(),
            Ordering::Greater => b.next(),
            Ordering::Equal => a.next().zip(b.next()).map(|(x, y)| x.newer(y)),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shard(id: u8, clock: i64, count: i64) -> Shard {
        Shard { id: CounterId::from_bytes([id; 16]), clock, count }
    }

    #[test]
    fn a_context_has_its_bytes() {
        let bytes = context(&[shard(1, 2, 3), shard(0xff, 4, -5)]);
        let mut wanted = vec![0, 2, 0x80, 0, 0x80, 1];
        wanted.extend([1; 16]);
        wanted.extend([0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3]);
        wanted.extend([0xff; 16]);
        wanted.extend([0, 0, 0, 0, 0, 0, 0, 4]);
        wanted.extend((-5i64).to_be_bytes());
        assert_eq!(bytes, wanted);
        assert_eq!(total(&bytes), -2);
        assert_eq!(shard_of(&bytes, CounterId::from_bytes([0xff; 16])), Some(shard(0xff, 4, -5)));
        assert_eq!(shard_of(&bytes, CounterId::from_bytes([2; 16])), None);
        assert_eq!(context(&[]), [0, 0], "as old files have it where a counter was deleted");
    }

    #[test]
    fn updates_add_up_and_contexts_do_not() {
        assert_eq!(merge(&update(2), &update(-5)), update(-3));
        assert_eq!(merge(&update(i64::MAX), &update(1)), update(i64::MIN));
        let one = context(&[shard(1, 7, 7)]);
        assert_eq!(merge(&one, &one), one);
        assert_eq!(
            merge(&one, &context(&[shard(1, 8, 3)])),
            context(&[shard(1, 8, 3)]),
            "the higher clock, not the sum"
        );
        assert_eq!(merge(&one, &update(1)), one);
    }

    #[test]
    fn damaged_contexts_are_read_as_far_as_they_go() {
        let whole = context(&[shard(1, 2, 3), shard(2, 3, 4)]);
        for cut in 0..whole.len() {
            let sum = total(&whole[..cut]);
            assert!(cut == UPDATE || [0, 3].contains(&sum), "{cut}: {sum}");
        }
        assert_eq!(total(&[0x7f, 0xff, 1]), 0);
        // Shards of old counters have no header, and count nevertheless.
        let mut bare = vec![0, 0];
        bare.extend_from_slice(&whole[6..]);
        assert_eq!(total(&bare), 7);
    }

    fn any_context() -> impl Strategy<Value = Vec<u8>> {
        let shards = proptest::collection::btree_map(0u8..5, (0i64..4, -3i64..4), 0..5);
        shards.prop_map(|shards| {
            let shards: Vec<Shard> = shards.into_iter().map(|(id, (clock, count))| shard(id, clock, count)).collect();
            context(&shards)
        })
    }

    proptest! {
        #[test]
        fn merging_has_its_laws(a in any_context(), b in any_context(), c in any_context()) {
            prop_assert_eq!(merge(&a, &b), merge(&b, &a));
            prop_assert_eq!(merge(&a, &a), a.clone());
            prop_assert_eq!(merge(&merge(&a, &b), &c), merge(&a, &merge(&b, &c)));
            let all = merge(&a, &b);
            for shard in shards(&a).chain(shards(&b)) {
                prop_assert!(shard_of(&all, shard.id).is_some_and(|kept| kept.clock >= shard.clock));
            }
        }

        #[test]
        fn any_bytes_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            total(&bytes);
            let context = merge(&bytes, &context(&[shard(1, 1, 1)]));
            total(&context);
        }
    }
}
