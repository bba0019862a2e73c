//! Filter.db: a bloom filter over partition keys.

use crate::generation::Version;
use crate::input::{Fault, Input, Parsed};

/// The chances of a false positive, by bits per key (from 1) and hashes (from 1). Used only for
/// sizing.
const CHANCES: [&[f64]; 15] = [
    &[1.0],
    &[0.393, 0.400],
    &[0.283, 0.237, 0.253],
    &[0.221, 0.155, 0.147, 0.160],
    &[0.181, 0.109, 0.092, 0.092, 0.101],
    &[0.154, 0.0804, 0.0609, 0.0561, 0.0578, 0.0638],
    &[0.133, 0.0618, 0.0423, 0.0359, 0.0347, 0.0364],
    &[0.118, 0.0489, 0.0306, 0.024, 0.0217, 0.0216, 0.0229],
    &[0.105, 0.0397, 0.0228, 0.0166, 0.0141, 0.0133, 0.0135, 0.0145],
    &[0.0952, 0.0329, 0.0174, 0.0118, 0.00943, 0.00844, 0.00819, 0.00846],
    &[0.0869, 0.0276, 0.0136, 0.00864, 0.0065, 0.00552, 0.00513, 0.00509],
    &[0.08, 0.0236, 0.0108, 0.00646, 0.00459, 0.00371, 0.00329, 0.00314],
    &[0.074, 0.0203, 0.00875, 0.00492, 0.00332, 0.00255, 0.00217, 0.00199, 0.00194],
    &[0.0689, 0.0177, 0.00718, 0.00381, 0.00244, 0.00179, 0.00146, 0.00129, 0.00121, 0.0012],
    &[0.0645, 0.0156, 0.00596, 0.003, 0.00183, 0.00128, 0.001, 0.000852, 0.000775, 0.000744],
];

/// The most bits per key, for chances that are below the table.
const MAX_BITS: u32 = 20;
/// The most hashes that a file may have.
const MAX_HASHES: u32 = 64;
/// Bits of a filter besides the bits of its keys.
const EXCESS: u64 = 20;
/// The most keys whose hashes are kept until the number of keys is known. Beyond that, the expected
/// number decides the size.
const MAX_KEPT: usize = 1 << 18;

/// The bits per key and the hashes for a chance.
fn size_for(chance: f64) -> (u32, u32) {
    for (i, row) in CHANCES.iter().enumerate().skip(1) {
        let best = row.iter().copied().fold(f64::INFINITY, f64::min);
        if best <= chance {
            let fewest = row.iter().position(|&c| c <= chance).unwrap_or(0);
            return (i as u32 + 1, fewest as u32 + 1);
        }
    }
    // Below the table: with the best number of hashes, b bits per key give about 0.6185^b.
    let bits = (chance.max(1e-9).ln() / 0.618_503_4_f64.ln()).ceil().clamp(16.0, MAX_BITS as f64);
    (bits as u32, (bits * std::f64::consts::LN_2).round() as u32)
}

/// A bloom filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    hashes: u32,
    words: Box<[u64]>,
}

impl Filter {
    fn with_keys(keys: u64, bits_per_key: u32, hashes: u32) -> Self {
        let words = (keys * bits_per_key as u64 + EXCESS).div_ceil(64) as usize;
        Filter { hashes, words: vec![0; words].into() }
    }

    #[inline]
    fn bits(&self, hash: (u64, u64)) -> impl Iterator<Item = u64> + use<> {
        let modulus = 64 * self.words.len() as i64;
        let (h1, mut x) = (hash.0, hash.1);
        (0..self.hashes).map(move |_| {
            let bit = (x as i64 % modulus).unsigned_abs();
            x = x.wrapping_add(h1);
            bit
        })
    }

    fn insert(&mut self, hash: (u64, u64)) {
        for bit in self.bits(hash) {
            self.words[(bit / 64) as usize] |= 1 << (bit % 64);
        }
    }

    /// Whether a key may be in it, by [`model::token::hash128`] of its bytes.
    #[inline]
    pub fn may_contain(&self, hash: (u64, u64)) -> bool {
        self.bits(hash).all(|bit| self.words[(bit / 64) as usize] & 1 << (bit % 64) != 0)
    }

    /// The memory that it holds, in bytes.
    pub fn memory_bytes(&self) -> usize {
        self.words.len() * 8
    }

    /// Hashes per key, number of bits, and number of set bits.
    pub(crate) fn facts(&self) -> (u32, u64, u64) {
        let set = self.words.iter().map(|word| u64::from(word.count_ones())).sum();
        (self.hashes, 64 * self.words.len() as u64, set)
    }

    pub(crate) fn read(bytes: &[u8], version: Version) -> Parsed<Self> {
        let mut input = Input(bytes);
        let hashes = input.be32()?;
        let count = input.be32()? as usize;
        let (words, rest) = input.0.as_chunks::<8>();
        if !(1..=MAX_HASHES).contains(&hashes) || words.is_empty() || words.len() != count || !rest.is_empty() {
            return Err(Fault::Bad("the filter has a wrong size or number of hashes"));
        }
        let word = if version.is_n() { u64::from_le_bytes } else { u64::from_be_bytes };
        Ok(Filter { hashes, words: words.iter().map(|bytes| word(*bytes)).collect() })
    }

    pub(crate) fn write(&self) -> Vec<u8> {
        debug_assert!(
            u32::try_from(self.words.len()).is_ok(),
            "the size of a filter fits the four bytes of the format"
        );
        debug_assert!((1..=MAX_HASHES).contains(&self.hashes), "a filter that is written can be read");
        let mut out = Vec::with_capacity(8 + 8 * self.words.len());
        out.extend_from_slice(&self.hashes.to_be_bytes());
        out.extend_from_slice(&(self.words.len() as u32).to_be_bytes());
        for word in &self.words {
            out.extend_from_slice(&word.to_be_bytes());
        }
        out
    }

    /// Halves the size, for the same keys. The number of words must be even.
    fn fold(&mut self) {
        debug_assert!(self.words.len() >= 2 && self.words.len().is_multiple_of(2), "only an even filter is folded");
        let (low, high) = self.words.split_at(self.words.len() / 2);
        self.words = low.iter().zip(high).map(|(a, b)| a | b).collect();
    }
}

/// Builds a filter. The number of keys is known only at the end.
#[derive(Debug)]
pub(crate) struct FilterBuilder {
    bits_per_key: u32,
    hashes: u32,
    expected: u64,
    keys: u64,
    kept: Vec<(u64, u64)>,
    filter: Option<Filter>,
}

impl FilterBuilder {
    /// A builder for about `expected` keys (rather too few than too many). `None` for a chance that
    /// needs no filter.
    pub fn new(chance: f64, expected: u64) -> Option<Self> {
        if chance >= 1.0 || chance.is_nan() {
            return None;
        }
        let (bits_per_key, hashes) = size_for(chance);
        Some(FilterBuilder { bits_per_key, hashes, expected, keys: 0, kept: Vec::new(), filter: None })
    }

    pub fn add(&mut self, key: &[u8]) {
        let hash = model::token::hash128(key);
        self.keys += 1;
        match &mut self.filter {
            Some(filter) => filter.insert(hash),
            None => {
                self.kept.push(hash);
                if self.kept.len() == MAX_KEPT {
                    let expected = self.expected.max(2 * MAX_KEPT as u64);
                    let words = (expected * self.bits_per_key as u64 + EXCESS).div_ceil(64);
                    // A multiple of a power of two, so that it can be folded if there are fewer
                    // keys than expected.
                    let words = words.next_multiple_of(1 << 10) as usize;
                    let mut filter = Filter { hashes: self.hashes, words: vec![0; words].into() };
                    self.kept.drain(..).for_each(|hash| filter.insert(hash));
                    self.filter = Some(filter);
                }
            }
        }
    }

    pub fn finish(self) -> Filter {
        match self.filter {
            None => {
                debug_assert_eq!(self.keys, self.kept.len() as u64, "the hash of each key is kept");
                let mut filter = Filter::with_keys(self.keys, self.bits_per_key, self.hashes);
                self.kept.into_iter().for_each(|hash| filter.insert(hash));
                filter
            }
            Some(mut filter) => {
                let enough = self.keys * self.bits_per_key as u64;
                while filter.words.len() % 2 == 0 && filter.words.len() as u64 / 2 * 64 >= enough {
                    filter.fold();
                }
                filter
            }
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.kept.capacity() * 16 + self.filter.as_ref().map_or(0, Filter::memory_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_table() {
        assert_eq!(size_for(0.01), (10, 5));
        assert_eq!(size_for(0.1), (5, 3));
        assert_eq!(size_for(0.0001).0, 20);
        assert!(FilterBuilder::new(1.0, 10).is_none());
    }

    #[test]
    fn keys_are_in_and_most_others_are_not() {
        for (keys, expected) in [(1000u32, 10), (MAX_KEPT as u32 + 1000, 4 * MAX_KEPT as u64), (MAX_KEPT as u32 + 9, 1)]
        {
            let mut builder = FilterBuilder::new(0.01, expected).expect("a filter");
            (0..keys).for_each(|key| builder.add(&key.to_be_bytes()));
            let filter = builder.finish();
            let hash = |key: u32| model::token::hash128(&key.to_be_bytes());
            assert!((0..keys).all(|key| filter.may_contain(hash(key))));
            let wrong = (keys..keys + 20_000).filter(|&key| filter.may_contain(hash(key))).count();
            assert!(wrong < 400, "{wrong} of 20000");
            assert_eq!(Filter::read(&filter.write(), Version::Me), Ok(filter.clone()));
            assert!(filter.memory_bytes() < keys as usize * 3, "folded to fit");
        }
    }
}
