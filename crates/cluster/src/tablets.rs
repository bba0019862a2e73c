//! Tablets: the token ranges of a table, and the shards that hold their replicas. Pure.
//!
//! A table has 2^k tablets. Tablet i owns the tokens (last(i-1), last(i)]; the last tablet ends at
//! the greatest token.

pub mod allocator;
pub mod count;
pub mod strategy;
pub mod transition;

use model::id::HostId;
use model::range::PartitionRange;
use model::token::Token;
use rt::ShardId;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::rc::Rc;
use transition::{Replicas, Transition, TransitionKind, WriteSet};

/// Tablet replicas that each shard gets of a new table (`tablets_initial_scale_factor`).
pub const INITIAL_SCALE_FACTOR: u32 = 10;

/// The maximum number of tablets of a table, as a power of two.
pub const MAX_LOG2_COUNT: u8 = 16;

/// One replica of a tablet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, serde::Serialize, serde::Deserialize)]
pub struct TabletReplica {
    /// The node.
    pub host: HostId,
    /// The shard of that node.
    pub shard: u16,
}

/// The replicas and transitions of a table's tablets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TabletMap {
    log2_count: u8,
    /// Shared between the maps of a table whose tablets move, because each step creates a new map.
    replicas: Rc<Vec<Replicas>>,
    /// The transitions of the tablets that move; usually empty.
    transitions: BTreeMap<u32, Transition>,
}

impl TabletMap {
    /// A map of `replicas.len()` tablets. `None` unless that is a power of two of at most
    /// `2^MAX_LOG2_COUNT`.
    pub fn new(replicas: Vec<SmallVec<[TabletReplica; 1]>>) -> Option<Self> {
        let log2_count = replicas.len().checked_ilog2()? as u8;
        (replicas.len().is_power_of_two() && log2_count <= MAX_LOG2_COUNT).then(|| TabletMap {
            log2_count,
            replicas: Rc::new(replicas),
            transitions: BTreeMap::new(),
        })
    }

    /// The number of tablets.
    #[inline]
    pub fn count(&self) -> u32 {
        self.replicas.len() as u32
    }

    /// The tablet that owns a token.
    #[inline]
    pub fn tablet_of(&self, token: Token) -> u32 {
        if self.log2_count == 0 {
            return 0;
        }
        let tablet = ((token.0 as u64).wrapping_add(1 << 63) >> (64 - self.log2_count)) as u32;
        debug_assert!(token <= self.last_token(tablet), "a tablet does not end before its tokens");
        debug_assert!(tablet == 0 || self.first_token(tablet) < token, "a tablet begins before its tokens");
        tablet
    }

    /// The last token of a tablet.
    #[inline]
    pub fn last_token(&self, tablet: u32) -> Token {
        if tablet + 1 >= self.count() {
            return Token(i64::MAX);
        }
        Token((((tablet as u64 + 1) << (64 - self.log2_count)) - 1).wrapping_sub(1 << 63) as i64)
    }

    /// The token before a tablet's first token; the least token for the first tablet.
    #[inline]
    pub fn first_token(&self, tablet: u32) -> Token {
        if tablet == 0 { Token(i64::MIN) } else { self.last_token(tablet - 1) }
    }

    /// The partitions of a tablet.
    #[inline]
    pub fn range(&self, tablet: u32) -> PartitionRange {
        debug_assert!(tablet < self.count(), "the map has the tablet");
        PartitionRange::tokens(self.first_token(tablet), self.last_token(tablet))
    }

    /// The replicas of a tablet. During a transition these are the old replicas.
    #[inline]
    pub fn replicas(&self, tablet: u32) -> &[TabletReplica] {
        &self.replicas[tablet as usize]
    }

    /// The only replica of a tablet, if it is on `host` and the tablet is not in a transition.
    #[inline]
    pub fn only_replica(&self, tablet: u32, host: HostId) -> Option<TabletReplica> {
        if !self.transitions.is_empty() && self.transitions.contains_key(&tablet) {
            return None;
        }
        match self.replicas(tablet) {
            [only] if only.host == host => Some(*only),
            _ => None,
        }
    }

    /// The replicas of a tablet that reads may use.
    #[inline]
    pub fn read_set(&self, tablet: u32) -> &[TabletReplica] {
        let replicas = self.replicas(tablet);
        if self.transitions.is_empty() {
            return replicas;
        }
        self.transitions.get(&tablet).map_or(replicas, |moving| moving.read_set(replicas))
    }

    /// The replicas that reads used before this stage of the tablet's transition, or will use after
    /// it. `None` outside a transition, and in a stage that writes to one set only.
    #[inline]
    pub fn other_read_set(&self, tablet: u32) -> Option<Replicas> {
        if self.transitions.is_empty() {
            return None;
        }
        self.transitions.get(&tablet)?.other_read_set(self.replicas(tablet))
    }

    /// The replicas that writes go to during a transition. `None` outside one: writes then go to
    /// [`TabletMap::replicas`].
    #[inline]
    pub fn moving_write_set(&self, tablet: u32) -> Option<WriteSet> {
        if self.transitions.is_empty() {
            return None;
        }
        self.transitions.get(&tablet).map(|moving| moving.write_set(self.replicas(tablet)))
    }

    /// The transition of a tablet.
    pub fn transition(&self, tablet: u32) -> Option<&Transition> {
        self.transitions.get(&tablet)
    }

    /// All tablets with a transition.
    pub fn transitions(&self) -> impl Iterator<Item = (u32, &Transition)> {
        self.transitions.iter().map(|(tablet, moving)| (*tablet, moving))
    }

    /// Begins a tablet's transition, or replaces its stage.
    pub fn set_transition(&mut self, tablet: u32, transition: Transition) {
        debug_assert!(tablet < self.count(), "a tablet of the map moves");
        self.transitions.insert(tablet, transition);
    }

    /// Ends a tablet's transition. With `moved`, the new replicas replace the old ones. Returns
    /// false if the tablet had no transition.
    pub fn end_transition(&mut self, tablet: u32, moved: bool) -> bool {
        let Some(ended) = self.transitions.remove(&tablet) else { return false };
        if moved {
            debug_assert!(!ended.new_replicas.is_empty(), "a tablet that has moved has replicas");
            Rc::make_mut(&mut self.replicas)[tablet as usize] = ended.new_replicas;
        }
        true
    }

    /// All replicas of a tablet: the current ones, and during a transition also the new ones.
    pub fn holders(&self, tablet: u32) -> impl Iterator<Item = TabletReplica> + '_ {
        let old = self.replicas(tablet);
        let new = self.transitions.get(&tablet).map_or(&[][..], |moving| &moving.new_replicas);
        old.iter().chain(new.iter().filter(|replica| !old.contains(replica))).copied()
    }

    /// The shard of a node that holds or receives a replica of a tablet. A node has at most one
    /// replica of a tablet.
    pub fn shard_on(&self, tablet: u32, host: HostId) -> Option<u16> {
        let held = self.holders(tablet).find(|replica| replica.host == host && self.is_held_by(tablet, replica));
        held.map(|replica| replica.shard)
    }

    fn is_held_by(&self, tablet: u32, replica: &TabletReplica) -> bool {
        let old = self.replicas(tablet);
        self.transitions.get(&tablet).map_or(old.contains(replica), |moving| moving.is_held_by(replica, old))
    }

    /// The tablets that another shard of a host serves in place of this one: their move from shard
    /// to shard has not ended, so requests may still come here.
    pub fn elsewhere_on(&self, host: HostId, shard: ShardId) -> impl Iterator<Item = u32> + '_ {
        let here = TabletReplica { host, shard: shard.0 };
        self.transitions().filter_map(move |(tablet, moving)| {
            let is_part = moving.kind == TransitionKind::IntranodeMigration
                && self.holders(tablet).any(|replica| replica == here);
            (is_part && !self.is_held_by(tablet, &here)).then_some(tablet)
        })
    }

    /// Whether a replica is still receiving the tablet's data: it is pending, and no stage up to
    /// now has required its data to be complete.
    pub fn is_incomplete(&self, tablet: u32, replica: TabletReplica) -> bool {
        let old = self.replicas(tablet);
        let moving = self.transitions.get(&tablet);
        moving.is_some_and(|moving| {
            moving.pending(old).any(|own| own == replica) && !moving.read_set(old).contains(&replica)
        })
    }

    /// Whether the table is node-local: each node stores its own data.
    pub fn is_node_local(&self) -> bool {
        self.replicas.iter().all(|replicas| replicas.is_empty())
    }

    /// The tablets with a replica on this shard of this host, including those that move there.
    pub fn on_shard(&self, host: HostId, shard: ShardId) -> impl Iterator<Item = u32> + '_ {
        let here = TabletReplica { host, shard: shard.0 };
        (0..self.count()).filter(move |tablet| self.is_held_by(*tablet, &here))
    }
}

/// The number of tablets of a new table on one node: about [`INITIAL_SCALE_FACTOR`] per shard, at
/// least `at_least`, at most `at_most`, rounded to a power of two.
pub fn initial_count(shards: u32, replication_factor: u32, at_least: u32, at_most: Option<u32>) -> u32 {
    let wanted = (shards * INITIAL_SCALE_FACTOR / replication_factor.max(1)).max(at_least).max(1);
    let wanted = at_most.map_or(wanted, |most| wanted.min(most.max(1)));
    let below = 1u32 << wanted.ilog2();
    let nearest = if wanted - below > 2 * below - wanted { 2 * below } else { below };
    let count = nearest.min(1 << MAX_LOG2_COUNT);
    debug_assert!(count.is_power_of_two(), "the tablets of a table divide the ring evenly");
    count
}

/// Distributes the tablets of a table over one node's shards. Each tablet goes to the shard with
/// the fewest tablets; `load` is the number of tablets of each shard.
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
    fn each_node_knows_the_tablets_of_its_replicas() {
        let other = HostId::from_bytes([8; 16]);
        let own = allocate(2, host(), &[0]);
        let local = TabletMap::new(vec![SmallVec::new()]).expect("one tablet");
        assert!(local.is_node_local() && !own.is_node_local());
        let of = |hosts: &[HostId]| -> SmallVec<[TabletReplica; 1]> {
            hosts.iter().map(|host| TabletReplica { host: *host, shard: 0 }).collect()
        };
        let mut moving = own;
        let transition = Transition {
            kind: transition::TransitionKind::Migration,
            stage: transition::Stage::Streaming,
            new_replicas: of(&[other]),
            session: None,
        };
        moving.set_transition(1, transition);
        assert_eq!(moving.on_shard(other, ShardId(0)).collect::<Vec<_>>(), [1], "it is coming there");
        assert_eq!(
            (moving.shard_on(1, host()), moving.shard_on(1, other), moving.shard_on(0, other)),
            (Some(0), Some(0), None)
        );
        let incomplete = |map: &TabletMap, host| map.is_incomplete(1, TabletReplica { host, shard: 0 });
        assert_eq!((incomplete(&moving, host()), incomplete(&moving, other)), (false, true));
        let complete = Transition {
            stage: transition::Stage::WriteBothReadNew,
            ..moving.transition(1).expect("it is on the move").clone()
        };
        let mut read = moving.clone();
        read.set_transition(1, complete);
        assert!(!incomplete(&read, other), "it is read");
        let set = moving.moving_write_set(1).expect("it is on the move");
        assert_eq!((set.replicas.len(), set.pending, moving.read_set(1).len()), (2, 1, 1));
        assert!(moving.moving_write_set(0).is_none());
        let mut moved = moving.clone();
        assert!(moving.end_transition(1, false) && !moving.end_transition(1, false));
        assert_eq!(moving.replicas(1)[0].host, host(), "the old copies stay");
        assert!(moved.end_transition(1, true));
        assert_eq!((moved.replicas(0)[0].host, moved.replicas(1)[0].host), (host(), other));
    }

    #[test]
    fn allocation_evens_the_load_out() {
        let map = allocate(8, host(), &[4, 0]);
        assert_eq!(map.on_shard(host(), ShardId(0)).count(), 2);
        assert_eq!(map.on_shard(host(), ShardId(1)).count(), 6);
    }
}
