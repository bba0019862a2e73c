//! The partitions of a memtable in ring order: a directory by the leading bits of the token, and
//! leaves of a few partitions.
//!
//! Tokens are hashes, evenly distributed over a tablet's range, so their leading bits locate a
//! key. A lookup has about three cache misses for any number of partitions; a tree has one at
//! each level. A full leaf is split by its next bit (extendible hashing, but in order). The
//! directory doubles when a leaf needs a bit that the directory does not distinguish; it holds
//! leaf numbers only. Keys chosen to share leading bits do not blow it up: its size is bounded by
//! the number of leaves, and leaves may grow.

use super::stored::Stored;
use model::Token;
use model::key::DecoratedKey;
use model::range::PartitionRange;
use smallvec::SmallVec;

/// The partitions of a leaf, unless the bits of their tokens do not let it be split.
const FULL: usize = 24;
/// The directory's places for each leaf, at most.
const SPARSE: usize = 8;
/// How many partitions a walk fetches ahead.
const AHEAD: usize = 8;

/// The overhead of a partition in addition to its contents: its entry in a leaf (two thirds full),
/// and in the directory.
pub(super) const SLOT: usize = std::mem::size_of::<Leaf>() * 3 / 2 / FULL + 8;

/// See the module.
pub(crate) struct Partitions {
    first: Token,
    last: Token,
    /// Leading bits in which no two tokens of the range differ.
    shift: u32,
    /// The bits that select a place in the directory. It has a place for each of their values.
    depth: u32,
    directory: Vec<u32>,
    leaves: Leaves,
    len: usize,
}

#[derive(Default)]
struct Leaf {
    /// The leading bits that its tokens share.
    depth: u32,
    /// In order of token, then key.
    tokens: SmallVec<[Token; FULL]>,
    stored: SmallVec<[Stored; FULL]>,
}

/// Leaves by number, in pieces of 1, 2, 4 and so on, so that none is ever moved.
#[derive(Default)]
struct Leaves {
    pieces: Vec<Vec<Leaf>>,
    count: usize,
}

impl Leaves {
    #[inline]
    fn place(n: usize) -> (usize, usize) {
        let piece = (n + 1).ilog2();
        (piece as usize, n + 1 - (1 << piece))
    }

    #[inline]
    fn get(&self, n: u32) -> &Leaf {
        let (piece, at) = Self::place(n as usize);
        &self.pieces[piece][at]
    }

    #[inline]
    fn get_mut(&mut self, n: u32) -> &mut Leaf {
        let (piece, at) = Self::place(n as usize);
        &mut self.pieces[piece][at]
    }

    fn push(&mut self, leaf: Leaf) -> u32 {
        let (piece, _) = Self::place(self.count);
        if piece == self.pieces.len() {
            self.pieces.push(Vec::with_capacity(1 << piece));
        }
        self.pieces[piece].push(leaf);
        self.count += 1;
        self.count as u32 - 1
    }
}

impl Leaf {
    /// The position of the first token that is not less than this.
    #[inline]
    fn lower_bound(&self, token: Token) -> usize {
        match self.tokens.len() {
            // Faster than by halves as long as it is one vector after another.
            0..=FULL => self.tokens.iter().map(|own| usize::from(*own < token)).sum(),
            _ => self.tokens.partition_point(|own| *own < token),
        }
    }

    /// Where a key is, or where it would be.
    #[inline]
    fn find(&self, token: Token, key: &[u8]) -> Result<usize, usize> {
        let at = self.lower_bound(token);
        if self.tokens.get(at) != Some(&token) {
            return Err(at);
        }
        if self.stored[at].key() == key {
            return Ok(at);
        }
        let run = self.tokens[at..].partition_point(|own| *own == token);
        let found = self.stored[at..at + run].binary_search_by(|own| own.key().cmp(key));
        found.map(|i| at + i).map_err(|i| at + i)
    }
}

impl Partitions {
    /// None yet, of a tablet's range.
    pub fn new(range: &PartitionRange) -> Self {
        let (first, last) = (range.start.token, range.end.token);
        let width = last.to_unsigned().saturating_sub(first.to_unsigned());
        Partitions {
            first,
            last,
            shift: width.leading_zeros().min(63),
            depth: 0,
            directory: Vec::new(),
            leaves: Leaves::default(),
            len: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bits of a token that differ within the range, leading ones first.
    #[inline]
    fn bits(&self, token: Token) -> u64 {
        token.to_unsigned().wrapping_sub(self.first.to_unsigned()) << self.shift
    }

    #[inline]
    fn place(&self, token: Token) -> usize {
        self.bits(token).checked_shr(u64::BITS - self.depth).unwrap_or(0) as usize
    }

    #[inline]
    pub fn get(&self, key: &DecoratedKey) -> Option<&Stored> {
        let leaf = self.leaves.get(*self.directory.get(self.place(key.token))?);
        leaf.find(key.token, &key.key).ok().map(|at| &leaf.stored[at])
    }

    #[inline]
    pub fn get_mut(&mut self, key: &DecoratedKey) -> Option<&mut Stored> {
        let n = *self.directory.get(self.place(key.token))?;
        let leaf = self.leaves.get_mut(n);
        leaf.find(key.token, &key.key).ok().map(|at| &mut leaf.stored[at])
    }

    /// Adds a partition that is not there, of the range.
    pub fn insert(&mut self, token: Token, partition: Stored) {
        debug_assert!((self.first..=self.last).contains(&token));
        if self.directory.is_empty() {
            let n = self.leaves.push(Leaf::default());
            self.directory.push(n);
        }
        self.len += 1;
        loop {
            let place = self.place(token);
            let leaf = self.leaves.get_mut(self.directory[place]);
            if leaf.tokens.len() >= FULL && self.split(place) {
                continue;
            }
            let leaf = self.leaves.get_mut(self.directory[place]);
            let found = leaf.find(token, partition.key());
            debug_assert!(found.is_err(), "a partition is added once");
            debug_assert_eq!(leaf.tokens.len(), leaf.stored.len(), "each partition of a leaf has its token");
            let (Ok(at) | Err(at)) = found;
            leaf.tokens.insert(at, token);
            leaf.stored.insert(at, partition);
            return;
        }
    }

    /// Splits a leaf by its next bit; `false` if the directory would become too large.
    fn split(&mut self, place: usize) -> bool {
        let left = self.directory[place];
        let depth = self.leaves.get(left).depth;
        let mut place = place;
        if depth == self.depth {
            if depth == u64::BITS - self.shift || self.directory.len() * 2 > SPARSE * (self.leaves.count + 1) {
                return false;
            }
            self.directory = self.directory.iter().flat_map(|&leaf| [leaf, leaf]).collect();
            self.depth += 1;
            place *= 2;
        }
        let (first, shift) = (self.first.to_unsigned(), self.shift);
        let is_left = |token: &Token| (token.to_unsigned().wrapping_sub(first) << shift << depth) >> 63 == 0;
        let leaf = self.leaves.get_mut(left);
        let at = leaf.tokens.partition_point(is_left);
        leaf.depth += 1;
        let right = Leaf {
            depth: leaf.depth,
            tokens: leaf.tokens.drain(at..).collect(),
            stored: leaf.stored.drain(at..).collect(),
        };
        debug_assert!(
            right.tokens.first().is_none_or(|first| leaf.tokens.last().is_none_or(|last| last < first)),
            "the halves of a leaf share no token"
        );
        let right = self.leaves.push(right);
        let covered = 1 << (self.depth - depth);
        let start = place & !(covered - 1);
        self.directory[start + covered / 2..start + covered].fill(right);
        debug_assert_eq!(self.directory.len(), 1 << self.depth, "the directory has a place for each value of its bits");
        true
    }

    /// All partitions, to be freed.
    pub fn into_stored(self) -> impl Iterator<Item = Stored> {
        self.leaves.pieces.into_iter().flatten().flat_map(|leaf| leaf.stored)
    }

    /// Calls `f` with the partitions of a range that come after a key, in order, until it says
    /// `false`.
    pub fn for_each(
        &self,
        range: &PartitionRange,
        after: Option<&DecoratedKey>,
        mut f: impl FnMut(Token, &Stored) -> bool,
    ) {
        let (first, last) = (after.map_or(range.start.token, |key| key.token), range.end.token);
        if first > last || first > self.last || last < self.first {
            return;
        }
        let mut place = self.place(first.max(self.first));
        while let Some(&n) = self.directory.get(place) {
            let leaf = self.leaves.get(n);
            let start = leaf.lower_bound(first);
            // The rows are anywhere in memory: they are prefetched while earlier ones are
            // visited.
            leaf.stored[start..].iter().take(AHEAD).for_each(Stored::prefetch);
            for (i, (token, stored)) in leaf.tokens.iter().zip(&leaf.stored).enumerate().skip(start) {
                if let Some(ahead) = leaf.stored.get(i + AHEAD) {
                    ahead.prefetch();
                }
                let token = *token;
                if token > last {
                    return;
                }
                if token == first || token == last {
                    let is_past = after.is_none_or(|after| (after.token, &after.key[..]) < (token, stored.key()));
                    if !is_past
                        || range.start.cmp_key(token, stored.key()).is_gt()
                        || range.end.cmp_key(token, stored.key()).is_lt()
                    {
                        continue;
                    }
                }
                if !f(token, stored) {
                    return;
                }
            }
            let covered = 1 << (self.depth - leaf.depth);
            place = (place & !(covered - 1)) + covered;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use model::key::RingCut;
    use proptest::prelude::*;

    fn decorated((token, key): (i64, u8)) -> DecoratedKey {
        DecoratedKey { token: Token(token), key: Bytes::from(vec![key]) }
    }

    fn cut() -> impl Strategy<Value = RingCut> {
        (0i64..6, prop::option::of(0u8..4), any::<bool>()).prop_map(|(token, key, after)| RingCut {
            token: Token(token),
            key: key.map(|key| Bytes::from(vec![key])),
            after,
        })
    }

    /// Tokens that are spread, that crowd together at either end, and that differ in the last bits
    /// only.
    fn token() -> impl Strategy<Value = i64> {
        prop_oneof![
            4 => any::<i64>(),
            1 => i64::MIN..i64::MIN + 40,
            1 => i64::MAX - 40..=i64::MAX,
            1 => 0i64..40,
        ]
    }

    proptest! {
        #[test]
        fn ranges_of_colliding_tokens(keys in prop::collection::btree_set((0i64..6, 0u8..4), 0..20), start in cut(), end in cut(), after in prop::option::of((0i64..6, 0u8..4))) {
            let mut partitions = Partitions::new(&PartitionRange::FULL);
            for &(token, key) in keys.iter().rev() {
                partitions.insert(Token(token), Stored::empty(Bytes::from(vec![key])));
            }
            prop_assert_eq!(partitions.len(), keys.len());
            for key in keys.iter().copied() {
                prop_assert!(partitions.get(&decorated(key)).is_some());
            }
            prop_assert!(partitions.get(&decorated((0, 9))).is_none());
            let range = PartitionRange { start, end };
            let after = after.map(decorated);
            let mut found = Vec::new();
            partitions.for_each(&range, after.as_ref(), |token, stored| {
                found.push(DecoratedKey { token, key: stored.key_bytes() });
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

        #[test]
        fn a_map_in_order(keys in prop::collection::btree_set((token(), 0u8..3), 0..600), tablet in prop::option::of((any::<i64>(), any::<i64>()))) {
            let range = match tablet {
                Some((a, b)) => PartitionRange::tokens(Token(a.min(b)), Token(a.max(b))),
                None => PartitionRange::FULL,
            };
            let keys: std::collections::BTreeSet<_> = keys.into_iter().filter(|key| range.contains(&decorated(*key))).collect();
            let mut partitions = Partitions::new(&range);
            // Not in order: by the key's bits turned round.
            let mut shuffled: Vec<_> = keys.iter().copied().collect();
            shuffled.sort_by_key(|(token, key)| (token.reverse_bits(), *key));
            for &(token, key) in &shuffled {
                prop_assert!(partitions.get_mut(&decorated((token, key))).is_none());
                partitions.insert(Token(token), Stored::empty(Bytes::from(vec![key])));
            }
            prop_assert!(keys.iter().all(|&key| partitions.get(&decorated(key)).is_some_and(|stored| stored.key() == [key.1])));
            let mut found = Vec::new();
            partitions.for_each(&PartitionRange::FULL, None, |token, stored| {
                found.push((token.0, stored.key()[0]));
                true
            });
            prop_assert_eq!(found, keys.iter().copied().collect::<Vec<_>>());
            prop_assert!(partitions.directory.len() <= SPARSE * (partitions.leaves.count + 1));
            prop_assert_eq!(partitions.into_stored().count(), keys.len());
        }
    }

    #[test]
    fn spread_tokens_fill_their_leaves() {
        let mut partitions = Partitions::new(&PartitionRange::FULL);
        for n in 0..50_000u32 {
            let key = DecoratedKey::new(Bytes::copy_from_slice(&n.to_be_bytes()));
            partitions.insert(key.token, Stored::empty(key.key));
        }
        let (leaves, directory) = (partitions.leaves.count, partitions.directory.len());
        assert!(leaves * FULL * 6 / 10 < 50_000, "{leaves} leaves");
        assert!(directory < leaves * 8, "{leaves} leaves, {directory} places");
    }
}
