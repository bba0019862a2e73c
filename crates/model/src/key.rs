//! Partition keys with their tokens, clustering prefixes, and the cuts between them.
//!
//! A clustering prefix is a sequence of components, each a big-endian u16 length and the bytes of
//! the value. A *cut* is a position between rows: before or after all rows that begin with a
//! prefix. Ranges of rows and range tombstones are pairs of cuts, so there is no distinction
//! between inclusive and exclusive bounds. The same holds for partitions ([`RingCut`]).

use crate::schema::ClusteringOrder;
use crate::token::Token;
use bytes::Bytes;
use std::cmp::Ordering;

/// The longest partition key, and the longest clustering component, in bytes.
pub const MAX_KEY_BYTES: usize = 65535;

/// A partition key in its serialised form with its token; ordered by token, then bytes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct DecoratedKey {
    /// The token of the key.
    pub token: Token,
    /// One component: its bytes; several: each as be16 length, bytes, 0.
    pub key: Bytes,
}

impl DecoratedKey {
    /// The key with its token.
    pub fn new(key: Bytes) -> Self {
        DecoratedKey { token: crate::token::of_key(&key), key }
    }
}

impl Ord for DecoratedKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.token.cmp(&other.token).then_with(|| self.key.cmp(&other.key))
    }
}

impl PartialOrd for DecoratedKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Appends the serialised partition key of these components.
pub fn encode_partition_key(components: &[&[u8]], out: &mut Vec<u8>) {
    debug_assert!(!components.is_empty(), "a partition key has components");
    if let [one] = components {
        out.extend_from_slice(one);
        return;
    }
    for component in components {
        debug_assert!(component.len() <= MAX_KEY_BYTES, "key components are checked before they get here");
        out.extend_from_slice(&(component.len() as u16).to_be_bytes());
        out.extend_from_slice(component);
        out.push(0);
    }
}

/// The components of a serialised partition key of `count` columns; `None` if the bytes are
/// malformed.
pub fn split_partition_key(key: &[u8], count: usize) -> Option<Vec<&[u8]>> {
    debug_assert!(count > 0, "a table has partition key columns");
    if count == 1 {
        return Some(vec![key]);
    }
    let mut rest = key;
    let mut out = Vec::with_capacity(count);
    for _ in 0..count {
        let (len, tail) = rest.split_at_checked(2)?;
        let (value, tail) = tail.split_at_checked(u16::from_be_bytes([len[0], len[1]]) as usize)?;
        let (_, tail) = tail.split_at_checked(1)?;
        out.push(value);
        rest = tail;
    }
    rest.is_empty().then_some(out)
}

/// A position between partitions.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct RingCut {
    /// The token of the cut.
    pub token: Token,
    /// The key of the cut. `None`: the cut applies to all keys of the token.
    pub key: Option<Bytes>,
    /// Whether the cut is after the key or keys, or before.
    pub after: bool,
}

impl RingCut {
    /// Before every partition.
    pub const MIN: RingCut = RingCut { token: Token(i64::MIN), key: None, after: false };
    /// After every partition.
    pub const MAX: RingCut = RingCut { token: Token(i64::MAX), key: None, after: true };

    /// Before all keys of a token.
    pub fn before_token(token: Token) -> Self {
        RingCut { token, key: None, after: false }
    }

    /// After all keys of a token.
    pub fn after_token(token: Token) -> Self {
        RingCut { token, key: None, after: true }
    }

    /// Just before a key.
    pub fn before_key(key: &DecoratedKey) -> Self {
        RingCut { token: key.token, key: Some(key.key.clone()), after: false }
    }

    /// Just after a key.
    pub fn after_key(key: &DecoratedKey) -> Self {
        RingCut { token: key.token, key: Some(key.key.clone()), after: true }
    }

    /// The cut compared with a key: `Less` if the cut is before the key. Never `Equal`.
    pub fn cmp_key(&self, token: Token, key: &[u8]) -> Ordering {
        let side = if self.after { Ordering::Greater } else { Ordering::Less };
        self.token.cmp(&token).then_with(|| match &self.key {
            None => side,
            Some(own) => own.as_ref().cmp(key).then(side),
        })
    }
}

impl Ord for RingCut {
    fn cmp(&self, other: &Self) -> Ordering {
        let beside = |cut: &RingCut| if cut.after { Ordering::Greater } else { Ordering::Less };
        self.token.cmp(&other.token).then_with(|| match (&self.key, &other.key) {
            (None, None) => self.after.cmp(&other.after),
            (None, Some(_)) => beside(self),
            (Some(_), None) => beside(other).reverse(),
            (Some(a), Some(b)) => a.cmp(b).then_with(|| self.after.cmp(&other.after)),
        })
    }
}

impl PartialOrd for RingCut {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A clustering key or a prefix of one, in the form of the module's header.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Clustering(pub Bytes);

impl Clustering {
    /// The prefix without components; also the key of tables without clustering columns.
    pub const EMPTY: Clustering = Clustering(Bytes::new());

    /// From component values, each at most [`MAX_KEY_BYTES`] long (the caller has checked).
    pub fn from_components<'a>(components: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut out = Vec::new();
        for component in components {
            push_component(&mut out, component);
        }
        Clustering(out.into())
    }

    /// The components in order.
    pub fn components(&self) -> Components<'_> {
        Components(&self.0)
    }

    /// How many components there are.
    pub fn len(&self) -> usize {
        self.components().count()
    }

    /// Whether there are no components.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Appends one component.
pub fn push_component(out: &mut Vec<u8>, component: &[u8]) {
    assert!(component.len() <= MAX_KEY_BYTES, "clustering components are checked before they get here");
    out.extend_from_slice(&(component.len() as u16).to_be_bytes());
    out.extend_from_slice(component);
}

/// The components of a clustering prefix. Stops at malformed bytes.
#[derive(Clone)]
pub struct Components<'a>(pub &'a [u8]);

impl<'a> Iterator for Components<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (len, tail) = self.0.split_at_checked(2)?;
        let (value, tail) = tail.split_at_checked(u16::from_be_bytes([len[0], len[1]]) as usize)?;
        self.0 = tail;
        Some(value)
    }
}

/// A position between rows of a partition.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ClusteringCut {
    /// The prefix of the cut.
    pub prefix: Clustering,
    /// Whether the cut is after all rows that begin with the prefix, or before.
    pub after: bool,
}

impl ClusteringCut {
    /// Before every row.
    pub const START: ClusteringCut = ClusteringCut { prefix: Clustering::EMPTY, after: false };
    /// After every row.
    pub const END: ClusteringCut = ClusteringCut { prefix: Clustering::EMPTY, after: true };

    /// Before everything that begins with `prefix`.
    pub fn before(prefix: Clustering) -> Self {
        ClusteringCut { prefix, after: false }
    }

    /// After everything that begins with `prefix`.
    pub fn after(prefix: Clustering) -> Self {
        ClusteringCut { prefix, after: true }
    }

    /// The same position in the order of a reversed reader.
    pub fn reversed(self) -> Self {
        ClusteringCut { prefix: self.prefix, after: !self.after }
    }

    /// As a position.
    pub fn position(&self) -> PositionRef<'_> {
        PositionRef { prefix: &self.prefix.0, weight: if self.after { 1 } else { -1 } }
    }

    /// The cut compared with a row. Never `Equal`.
    pub fn cmp_row(&self, order: &ClusteringOrder, row: &Clustering) -> Ordering {
        order.compare(self.position(), PositionRef::row(row))
    }

    /// The order of two cuts.
    pub fn cmp(&self, order: &ClusteringOrder, other: &ClusteringCut) -> Ordering {
        order.compare(self.position(), other.position())
    }
}

/// A row (weight 0) or a cut (weight -1 or 1), borrowed, for comparisons.
#[derive(Clone, Copy, Debug)]
pub struct PositionRef<'a> {
    /// The encoded prefix.
    pub prefix: &'a [u8],
    /// Before (-1), at (0) or after (1) the prefix.
    pub weight: i8,
}

impl<'a> PositionRef<'a> {
    /// The position of a row.
    pub fn row(key: &'a Clustering) -> Self {
        PositionRef { prefix: &key.0, weight: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partition_keys_come_apart_again() {
        let mut out = Vec::new();
        encode_partition_key(&[b"ab", b"", b"c"], &mut out);
        assert_eq!(split_partition_key(&out, 3).unwrap(), vec![&b"ab"[..], b"", b"c"]);
        assert!(split_partition_key(&out, 2).is_none());
        assert!(split_partition_key(&out[..out.len() - 1], 3).is_none());
    }

    #[test]
    fn ring_cuts_lie_between_keys() {
        let a = DecoratedKey::new(Bytes::from_static(b"a"));
        let cuts = [
            RingCut::MIN,
            RingCut::before_token(a.token),
            RingCut::before_key(&a),
            RingCut::after_key(&a),
            RingCut::after_token(a.token),
            RingCut::MAX,
        ];
        for pair in cuts.windows(2) {
            assert!(pair[0] < pair[1], "{pair:?}");
        }
        assert_eq!(RingCut::before_key(&a).cmp_key(a.token, &a.key), Ordering::Less);
        assert_eq!(RingCut::after_key(&a).cmp_key(a.token, &a.key), Ordering::Greater);
    }
}
