//! Tablets: the token ranges of a table and the shards that hold them. Pure.
//!
//! A table has 2^k tablets; tablet i owns the tokens (last(i-1), last(i)], the last one up to the greatest token.

use model::id::HostId;
use model::range::PartitionRange;
use model::token::Token;
use rt::ShardId;
use smallvec::SmallVec;

/// Tablet replicas a shard gets of each new table (`tablets_initial_scale_factor`).
pub const INITIAL_SCALE_FACTOR: u32 = 10;

/// The most tablets a table may have, as a power of two.
pub const MAX_LOG2_COUNT: u8 = 16;

/// One copy of a tablet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, serde::Serialize, serde::Deserialize)]
pub struct TabletReplica {
    /// The node.
    pub host: HostId,
    /// The shard of that node.
    pub shard: u16,
}

/// Where a table's tablets are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TabletMap {
    log2_count: u8,
    replicas: Vec<SmallVec<[TabletReplica; 1]>>,
}

impl TabletMap {
    /// A map of `replicas.len()` tablets, which must be a power of two.
    pub fn new(replicas: Vec<SmallVec<[TabletReplica; 1]>>) -> Option<Self> {
        let log2_count = replicas.len().checked_ilog2()? as u8;
        (replicas.len().is_power_of_two() && log2_count <= MAX_LOG2_COUNT).then_some(TabletMap { log2_count, replicas })
    }

    /// How many tablets there are.
    pub fn count(&self) -> u32 {
        self.replicas.len() as u32
    }

    /// The tablet that owns a token.
    pub fn tablet_of(&self, token: Token) -> u32 {
        if self.log2_count == 0 {
            return 0;
        }
        ((token.0 as u64).wrapping_add(1 << 63) >> (64 - self.log2_count)) as u32
    }

    /// The last token of a tablet.
    pub fn last_token(&self, tablet: u32) -> Token {
        if tablet + 1 >= self.count() {
            return Token(i64::MAX);
        }
        Token((((tablet as u64 + 1) << (64 - self.log2_count)) - 1).wrapping_sub(1 << 63) as i64)
    }

    /// The token before a tablet's first one; the least token for the first tablet.
    pub fn first_token(&self, tablet: u32) -> Token {
        if tablet == 0 { Token(i64::MIN) } else { self.last_token(tablet - 1) }
    }

    /// The partitions of a tablet.
    pub fn range(&self, tablet: u32) -> PartitionRange {
        PartitionRange::tokens(self.first_token(tablet), self.last_token(tablet))
    }

    /// Its copies.
    pub fn replicas(&self, tablet: u32) -> &[TabletReplica] {
        &self.replicas[tablet as usize]
    }

    /// The tablets whose copies are on this shard of this host.
    pub fn on_shard(&self, host: HostId, shard: ShardId) -> impl Iterator<Item = u32> + '_ {
        let here = TabletReplica { host, shard: shard.0 };
        (0..self.count()).filter(move |tablet| self.replicas(*tablet).contains(&here))
    }
}

/// How many tablets a new table gets: about [`INITIAL_SCALE_FACTOR`] a shard, at least `at_least`, at most `at_most`, rounded to a
/// power of two.
pub fn initial_count(shards: u32, replication_factor: u32, at_least: u32, at_most: Option<u32>) -> u32 {
    let wanted = (shards * INITIAL_SCALE_FACTOR / replication_factor.max(1)).max(at_least).max(1);
    let wanted = at_most.map_or(wanted, |most| wanted.min(most.max(1)));
    let below = 1u32 << wanted.ilog2();
    let nearest = if wanted - below > 2 * below - wanted { 2 * below } else { below };
    nearest.min(1 << MAX_LOG2_COUNT)
}

/// Spreads the tablets of a table over one node's shards, beginning with the shard that has the fewest (`load`: tablets each).
pub fn allocate(count: u32, host: HostId, load: &[u32]) -> TabletMap {
    assert!(!load.is_empty(), "a node has shards");
    let mut load = load.to_vec();
    let replicas = (0..count)
        .map(|_| {
            let (shard, _) =
                load.iter().enumerate().min_by_key(|(shard, load)| (**load, *shard)).expect("there are shards");
            load[shard] += 1;
            SmallVec::from_elem(TabletReplica { host, shard: shard as u16 }, 1)
        })
        .collect();
    TabletMap::new(replicas).expect("the count is a power of two")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> HostId {
        HostId::from_bytes([7; 16])
    }

    #[test]
    fn tablets_cover_the_ring_once() {
        for count in [1u32, 2, 8, 64] {
            let map = allocate(count, host(), &[0, 0, 0]);
            for tablet in 0..count {
                let (first, last) = (map.first_token(tablet), map.last_token(tablet));
                assert!(first < last);
                assert_eq!(map.tablet_of(last), tablet);
                if tablet > 0 {
                    assert_eq!(map.tablet_of(first), tablet - 1, "the first token is exclusive");
                }
            }
            assert_eq!(map.last_token(count - 1), Token(i64::MAX));
        }
    }

    #[test]
    fn counts_follow_the_facts() {
        assert_eq!(initial_count(1, 1, 0, None), 8);
        assert_eq!(initial_count(2, 1, 0, None), 16);
        assert_eq!(initial_count(2, 1, 33, None), 32);
        assert_eq!(initial_count(2, 1, 0, Some(4)), 4);
        assert_eq!(initial_count(6, 3, 0, None), 16);
    }

    #[test]
    fn allocation_evens_the_load_out() {
        let map = allocate(8, host(), &[4, 0]);
        assert_eq!(map.on_shard(host(), ShardId(0)).count(), 2);
        assert_eq!(map.on_shard(host(), ShardId(1)).count(), 6);
    }
}
