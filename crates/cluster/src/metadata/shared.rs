//! Maps that are cheap to copy: a changed copy copies only the changed part. Metadata snapshots
//! consist of them.
//!
//! [`SharedMap`] is ordered: sorted pieces of up to [`PIECE`] entries behind reference counts.
//! [`ById`] finds a table by its id in one step, in buckets of a few entries each. A change copies
//! one piece or bucket, and the list of pieces or buckets. With a thousand tables that takes some
//! microseconds. Shards share nothing here.

use model::id::TableId;
use std::borrow::Borrow;
use std::fmt;
use std::rc::Rc;

/// The maximum number of entries of a piece.
const PIECE: usize = 64;
/// The maximum average number of entries of a bucket.
const BUCKET: usize = 4;

/// Entries in the order of their keys.
type Piece<K, V> = Rc<Vec<(K, V)>>;

/// An ordered map. Its copies share equal parts.
pub struct SharedMap<K, V> {
    /// No piece is empty. All keys of a piece are less than all keys of the next piece.
    pieces: Rc<Vec<Piece<K, V>>>,
    len: usize,
}

impl<K, V> Clone for SharedMap<K, V> {
    fn clone(&self) -> Self {
        SharedMap { pieces: self.pieces.clone(), len: self.len }
    }
}

impl<K, V> Default for SharedMap<K, V> {
    fn default() -> Self {
        SharedMap { pieces: Rc::default(), len: 0 }
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SharedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map()
            .entries(self.pieces.iter().flat_map(|piece| piece.iter()).map(|(key, value)| (key, value)))
            .finish()
    }
}

impl<K, V> SharedMap<K, V> {
    /// The number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All entries in the order of their keys.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&K, &V)> {
        self.pieces.iter().flat_map(|piece| piece.iter()).map(|(key, value)| (key, value))
    }

    /// All keys in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// All values in the order of their keys.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// The piece that contains the key, or would contain it, and the index in that piece.
    fn find<Q>(&self, key: &Q) -> Option<(usize, Result<usize, usize>)>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        let begun = self.pieces.partition_point(|piece| key.cmp(piece[0].0.borrow()).is_ge());
        let at = begun.saturating_sub(1);
        let piece = self.pieces.get(at)?;
        Some((at, piece.binary_search_by(|(own, _)| key.cmp(own.borrow()).reverse())))
    }

    /// The value of a key.
    pub fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        let (at, place) = self.find(key)?;
        Some(&self.pieces[at][place.ok()?].1)
    }

    /// Whether the map contains a key.
    pub fn contains_key<Q>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        self.get(key).is_some()
    }
}

impl<K: Ord + Clone, V: Clone> SharedMap<K, V> {
    /// The value of a key, to change it in this copy only.
    pub fn get_mut<Q>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        let (at, Ok(place)) = self.find(key)? else { return None };
        Some(&mut Rc::make_mut(&mut Rc::make_mut(&mut self.pieces)[at])[place].1)
    }

    /// Sets the value of a key. Returns the previous value.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let found = self.find(&key);
        let pieces = Rc::make_mut(&mut self.pieces);
        match found {
            None => pieces.push(Rc::new(vec![(key, value)])),
            Some((at, Ok(place))) => {
                return Some(std::mem::replace(&mut Rc::make_mut(&mut pieces[at])[place].1, value));
            }
            Some((at, Err(place))) => {
                let piece = Rc::make_mut(&mut pieces[at]);
                piece.insert(place, (key, value));
                if piece.len() > PIECE {
                    let upper = piece.split_off(PIECE / 2);
                    debug_assert!(piece.last().is_some_and(|(key, _)| *key < upper[0].0), "the pieces are in order");
                    pieces.insert(at + 1, Rc::new(upper));
                }
            }
        }
        self.len += 1;
        None
    }

    /// Removes a key. Returns its value.
    pub fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
        Q: Ord + ?Sized,
    {
        let (at, Ok(place)) = self.find(key)? else { return None };
        let pieces = Rc::make_mut(&mut self.pieces);
        let (_, value) = Rc::make_mut(&mut pieces[at]).remove(place);
        if pieces[at].is_empty() {
            pieces.remove(at);
        } else if pieces.get(at + 1).is_some_and(|next| pieces[at].len() + next.len() <= PIECE / 2) {
            let next = pieces.remove(at + 1);
            Rc::make_mut(&mut pieces[at]).extend(next.iter().cloned());
        }
        self.len -= 1;
        Some(value)
    }
}

/// A map by table id. Its copies share equal parts.
#[derive(Clone, Debug)]
pub(super) struct ById<V> {
    /// Their number is a power of two.
    buckets: Rc<Vec<Bucket<V>>>,
    len: usize,
}

/// The entries of a bucket; `None` if it has none.
type Bucket<V> = Option<Rc<Vec<(TableId, V)>>>;

impl<V> Default for ById<V> {
    fn default() -> Self {
        ById { buckets: Rc::new(vec![None]), len: 0 }
    }
}

/// The bucket of an id; `buckets` is a power of two. Ids that are created close together differ in
/// a few bits only, so all bits are mixed.
#[inline]
fn bucket_of(id: TableId, buckets: usize) -> usize {
    let (most, least) = id.0.as_u64_pair();
    let stirred = (most ^ least.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (stirred >> 32) as usize & (buckets - 1)
}

impl<V> ById<V> {
    /// The number of ids.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The value of an id.
    #[inline]
    pub fn get(&self, id: TableId) -> Option<&V> {
        let bucket = self.buckets[bucket_of(id, self.buckets.len())].as_ref()?;
        bucket.iter().find(|(own, _)| *own == id).map(|(_, value)| value)
    }
}

impl<V: Clone> ById<V> {
    /// Sets the value of an id. Returns the previous value.
    pub fn insert(&mut self, id: TableId, value: V) -> Option<V> {
        if self.len == self.buckets.len() * BUCKET {
            self.grow();
        }
        let at = bucket_of(id, self.buckets.len());
        let bucket = Rc::make_mut(Rc::make_mut(&mut self.buckets)[at].get_or_insert_default());
        match bucket.iter_mut().find(|(own, _)| *own == id) {
            Some((_, before)) => Some(std::mem::replace(before, value)),
            None => {
                bucket.push((id, value));
                self.len += 1;
                None
            }
        }
    }

    /// Removes an id. Returns its value.
    pub fn remove(&mut self, id: TableId) -> Option<V> {
        self.get(id)?;
        let at = bucket_of(id, self.buckets.len());
        let slot = &mut Rc::make_mut(&mut self.buckets)[at];
        let bucket = Rc::make_mut(slot.as_mut()?);
        let place = bucket.iter().position(|(own, _)| *own == id)?;
        let (_, value) = bucket.swap_remove(place);
        if bucket.is_empty() {
            *slot = None;
        }
        self.len -= 1;
        Some(value)
    }

    fn grow(&mut self) {
        let count = self.buckets.len() * 2;
        let mut buckets: Vec<Vec<(TableId, V)>> = vec![Vec::new(); count];
        for (id, value) in self.buckets.iter().flatten().flat_map(|bucket| bucket.iter()) {
            buckets[bucket_of(*id, count)].push((*id, value.clone()));
        }
        let filled = |bucket: Vec<_>| (!bucket.is_empty()).then(|| Rc::new(bucket));
        self.buckets = Rc::new(buckets.into_iter().map(filled).collect());
        debug_assert!(self.buckets.len().is_power_of_two(), "an id has a bucket");
        debug_assert_eq!(
            self.buckets.iter().flatten().map(|bucket| bucket.len()).sum::<usize>(),
            self.len,
            "no table is lost"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use uuid::Uuid;

    #[derive(Clone, Debug)]
    enum Step {
        Put(u16, u8),
        Change(u16),
        Remove(u16),
        /// Continues with a copy; the original must not change any more.
        Fork,
    }

    fn step() -> impl Strategy<Value = Step> {
        // Mostly growing at first, so that pieces split.
        prop_oneof![
            6 => (0..400u16, any::<u8>()).prop_map(|(key, value)| Step::Put(key, value)),
            1 => (0..400u16).prop_map(Step::Change),
            3 => (0..400u16).prop_map(Step::Remove),
            1 => Just(Step::Fork),
        ]
    }

    fn id(key: u16) -> TableId {
        // Time UUIDs of about the same time: most bits are equal.
        TableId(Uuid::from_u64_pair(0x1234_5678_9abc_1def + (u64::from(key) << 32), 0x8123_4567_89ab_cdef))
    }

    proptest! {
        #[test]
        fn both_do_as_a_map_does_and_copies_do_not_change(steps in prop::collection::vec(step(), 1..700)) {
            let (mut map, mut ids, mut model) = (SharedMap::default(), ById::default(), BTreeMap::new());
            let mut kept = Vec::new();
            for step in steps {
                match step {
                    Step::Put(key, value) => {
                        let before = model.insert(key, value);
                        prop_assert_eq!(map.insert(key, value), before);
                        prop_assert_eq!(ids.insert(id(key), value), before);
                    }
                    Step::Change(key) => {
                        let changed = model.get_mut(&key).map(|value| { *value ^= 1; *value });
                        prop_assert_eq!(map.get_mut(&key).map(|value| { *value ^= 1; *value }), changed);
                        if let Some(value) = changed {
                            ids.insert(id(key), value);
                        }
                    }
                    Step::Remove(key) => {
                        let before = model.remove(&key);
                        prop_assert_eq!(map.remove(&key), before);
                        prop_assert_eq!(ids.remove(id(key)), before);
                    }
                    Step::Fork => kept.push((map.clone(), ids.clone(), model.clone())),
                }
            }
            kept.push((map, ids, model));
            for (map, ids, model) in kept {
                prop_assert_eq!((map.len(), map.is_empty()), (model.len(), model.is_empty()));
                prop_assert!(map.iter().eq(model.iter()), "{:?} is not {:?}", map, model);
                prop_assert!(map.pieces.iter().all(|piece| (1..=PIECE).contains(&piece.len())));
                for key in 0..400 {
                    prop_assert_eq!(map.get(&key), model.get(&key));
                    prop_assert_eq!(ids.get(id(key)), model.get(&key));
                }
            }
        }
    }

    /// The purpose of these maps: the cost of a change does not grow with the number of entries.
    #[test]
    fn a_changed_copy_shares_all_but_one_piece() {
        let (mut map, mut ids) = (SharedMap::default(), ById::default());
        for key in 0..5000u16 {
            map.insert(key, ());
            ids.insert(id(key), ());
        }
        let (before, before_ids) = (map.clone(), ids.clone());
        map.insert(5000, ());
        ids.remove(id(7));
        let shared = map.pieces.iter().filter(|piece| before.pieces.iter().any(|own| Rc::ptr_eq(own, piece))).count();
        assert!(shared + 2 >= map.pieces.len() && map.pieces.len() > 70, "{shared} of {}", map.pieces.len());
        let same = |(a, b): (&Bucket<()>, &Bucket<()>)| match (a, b) {
            (Some(a), Some(b)) => Rc::ptr_eq(a, b),
            (None, None) => true,
            _ => false,
        };
        let differ = ids.buckets.iter().zip(before_ids.buckets.iter()).filter(|pair| !same(*pair)).count();
        assert_eq!(differ, 1);
        let longest = ids.buckets.iter().flatten().map(|bucket| bucket.len()).max();
        assert!(longest.is_some_and(|longest| longest < 24), "ids of one moment are spread: {longest:?}");
    }
}
