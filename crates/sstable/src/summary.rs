//! Summary.db: every n-th key of the index with its position, and the first and the last key. It is
//! held in memory entirely.
//!
//! Readers assume no spacing. Tokens are computed at load, so that a search compares numbers.

use crate::input::{Fault, Input, Parsed};
use bytes::Bytes;
use model::key::{DecoratedKey, RingCut};
use model::token::{self, Token};
use std::cmp::Ordering;

/// The sampling level of a full summary.
const FULL_SAMPLING_LEVEL: u32 = 128;

/// The summary of an sstable.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    /// The entries, one after another.
    bytes: Bytes,
    /// The start of each entry in `bytes`; one more than there are entries.
    starts: Vec<u32>,
    tokens: Vec<Token>,
    /// The partitions per entry without downsampling, and the sampling level. Messina only shows
    /// them.
    pub interval: u32,
    pub level: u32,
    pub first: DecoratedKey,
    pub last: DecoratedKey,
}

impl Summary {
    pub fn read(bytes: &Bytes) -> Parsed<Self> {
        let mut input = Input(bytes);
        let interval = input.be32()?;
        let count = input.be32()? as usize;
        let size = usize::try_from(input.be64()?).map_err(|_| Fault::Short)?;
        let level = input.be32()?;
        input.be32()?;
        let part = input.take(size)?;
        let list =
            count.checked_mul(4).filter(|&list| list <= part.len()).ok_or(Fault::Bad("there are too many entries"))?;
        let mut offsets = Input(&part[..list]);
        let mut starts = Vec::with_capacity(count + 1);
        for _ in 0..count {
            let start = (offsets.le32()? as usize)
                .checked_sub(list)
                .ok_or(Fault::Bad("the offset of an entry is not valid"))?;
            if starts.last().is_some_and(|&last| start < last as usize + 8) || start + 8 > part.len() - list {
                return Err(Fault::Bad("the offset of an entry is not valid"));
            }
            starts.push(start as u32);
        }
        if starts.first().is_none_or(|&first| first != 0) {
            return Err(Fault::Bad("there are no entries, or the first offset is wrong"));
        }
        starts.push((part.len() - list) as u32);
        let entries = bytes.slice_ref(&part[list..]);
        let key = |input: &mut Input<'_>| {
            let len = input.be32()? as usize;
            Ok(DecoratedKey::new(bytes.slice_ref(input.take(len)?)))
        };
        let (first, last) = (key(&mut input)?, key(&mut input)?);
        if !input.0.is_empty() || first > last {
            return Err(Fault::Bad("the first key is after the last key, or bytes follow the keys"));
        }
        let mut summary = Summary { bytes: entries, starts, tokens: Vec::new(), interval, level, first, last };
        summary.tokens = (0..count).map(|i| token::of_key(summary.key(i))).collect();
        let sorted = (1..count).all(|i| summary.cmp_keys(i - 1, i) == Ordering::Less);
        if !sorted || summary.key(0) != &summary.first.key[..] {
            return Err(Fault::Bad("the keys are not in order, or the first key is wrong"));
        }
        Ok(summary)
    }

    fn cmp_keys(&self, a: usize, b: usize) -> Ordering {
        self.tokens[a].cmp(&self.tokens[b]).then_with(|| self.key(a).cmp(self.key(b)))
    }

    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    fn key(&self, i: usize) -> &[u8] {
        &self.bytes[self.starts[i] as usize..self.starts[i + 1] as usize - 8]
    }

    /// The key of entry `i`, with its token.
    pub fn decorated_key(&self, i: usize) -> DecoratedKey {
        DecoratedKey { token: self.tokens[i], key: self.bytes.slice_ref(self.key(i)) }
    }

    /// The position in the index of the key of entry `i`.
    pub fn position(&self, i: usize) -> u64 {
        let at = self.starts[i + 1] as usize - 8;
        self.bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }

    /// The last entry at or before a key; `None` if the key is before the first.
    pub fn at_or_before(&self, key: &DecoratedKey) -> Option<usize> {
        let mut i = self.tokens.partition_point(|&t| t < key.token);
        while i < self.len() && self.tokens[i] == key.token && self.key(i) <= &key.key[..] {
            i += 1;
        }
        i.checked_sub(1)
    }

    /// The last entry before a cut, or the first entry of all.
    pub fn before(&self, cut: &RingCut) -> usize {
        let mut i = self.tokens.partition_point(|&t| t < cut.token);
        while i < self.len() && cut.cmp_key(self.tokens[i], self.key(i)) == Ordering::Greater {
            i += 1;
        }
        i.saturating_sub(1)
    }

    /// The memory that it holds, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.len() + self.starts.capacity() * 4 + self.tokens.capacity() * 8
    }
}

/// Samples keys as they are written.
#[derive(Debug)]
pub(crate) struct SummaryBuilder {
    interval: u32,
    keys: u64,
    starts: Vec<u32>,
    entries: Vec<u8>,
    first: Option<Bytes>,
}

impl SummaryBuilder {
    /// Samples one of `interval` keys.
    pub fn new(interval: u32) -> Self {
        SummaryBuilder { interval: interval.max(1), keys: 0, starts: Vec::new(), entries: Vec::new(), first: None }
    }

    /// Adds the next key with its position in Index.db. After 4 GiB of entries, no more keys are
    /// sampled.
    pub fn add(&mut self, key: &Bytes, position: u64) {
        let last = self.entries.last_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        debug_assert!(last.is_none_or(|last| last < position), "positions in the index ascend");
        if self.first.is_none() {
            self.first = Some(Bytes::copy_from_slice(key));
        }
        let sampled = self.keys.is_multiple_of(self.interval as u64);
        self.keys += 1;
        let room = self.entries.len() + 4 * self.starts.len() + key.len() + 12 <= u32::MAX as usize;
        if sampled && room {
            self.starts.push(self.entries.len() as u32);
            self.entries.extend_from_slice(key);
            self.entries.extend_from_slice(&position.to_le_bytes());
        }
    }

    /// The bytes of the file; `last` is the last key.
    pub fn finish(self, last: &[u8]) -> Vec<u8> {
        debug_assert!(self.starts.first().is_none_or(|first| *first == 0), "the first key is sampled");
        debug_assert!(self.starts.len() as u64 <= self.keys, "a key is sampled once");
        let list = 4 * self.starts.len();
        let mut out = Vec::with_capacity(64 + list + self.entries.len());
        let size_at_full_sampling = self.keys.div_ceil(self.interval as u64) as u32;
        out.extend_from_slice(&self.interval.to_be_bytes());
        out.extend_from_slice(&(self.starts.len() as u32).to_be_bytes());
        out.extend_from_slice(&((list + self.entries.len()) as u64).to_be_bytes());
        out.extend_from_slice(&FULL_SAMPLING_LEVEL.to_be_bytes());
        out.extend_from_slice(&size_at_full_sampling.to_be_bytes());
        for start in &self.starts {
            out.extend_from_slice(&(start + list as u32).to_le_bytes());
        }
        out.extend_from_slice(&self.entries);
        for key in [self.first.as_deref().unwrap_or_default(), last] {
            out.extend_from_slice(&(key.len() as u32).to_be_bytes());
            out.extend_from_slice(key);
        }
        out
    }

    pub fn memory_bytes(&self) -> usize {
        self.entries.capacity() + self.starts.capacity() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Vec<DecoratedKey>, Summary) {
        let mut keys: Vec<_> =
            (0..1000u32).map(|n| DecoratedKey::new(Bytes::copy_from_slice(&n.to_be_bytes()))).collect();
        keys.sort();
        let mut builder = SummaryBuilder::new(7);
        keys.iter().enumerate().for_each(|(i, key)| builder.add(&key.key, 10 * i as u64));
        let bytes = Bytes::from(builder.finish(&keys[999].key));
        (keys, Summary::read(&bytes).expect("well formed"))
    }

    #[test]
    fn searches_find_the_last_sample_before() {
        let (keys, summary) = sample();
        assert_eq!((summary.len(), &summary.first, &summary.last), (143, &keys[0], &keys[999]));
        for (i, key) in keys.iter().enumerate() {
            assert_eq!(summary.at_or_before(key), Some(i / 7));
            assert_eq!(summary.position(i / 7), (i / 7 * 70) as u64);
            assert_eq!(summary.before(&RingCut::after_key(key)), i / 7);
            assert_eq!(summary.before(&RingCut::before_key(key)), i.saturating_sub(1) / 7);
        }
        assert_eq!(summary.before(&RingCut::MIN), 0);
    }

    #[test]
    fn damage_is_refused_or_harmless() {
        let mut builder = SummaryBuilder::new(1);
        let key = Bytes::from_static(b"a");
        builder.add(&key, 0);
        let bytes = builder.finish(&key);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                // Must not panic. Checksums detect damage that is well-formed.
                let _ = Summary::read(&Bytes::from(damaged));
            }
            assert!(Summary::read(&Bytes::copy_from_slice(&bytes[..at])).is_err());
        }
    }
}
