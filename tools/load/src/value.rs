//! Values derived from keys.
//!
//! A value is a function of the seed, its primary key and its version. A reader computes it again
//! and compares, so no list of what was written is needed.

/// A pseudo-random sequence that is the same in every run.
pub struct Random(u64);

impl Random {
    /// The sequence of one worker.
    pub fn new(seed: u64, worker: u64) -> Self {
        Random(hash(hash(seed) ^ worker))
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0xa076_1d64_78bd_642f);
        fold(self.0, self.0 ^ 0xe703_7ed1_a0b4_28db)
    }

    /// A number below `end`, which must not be 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(end)) >> 64) as u64
    }

    /// True with this probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        // 53 bits fill the fraction of a double.
        ((self.next() >> 11) as f64) < probability * (1u64 << 53) as f64
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (2..=items.len()).rev() {
            items.swap(end - 1, self.below(end as u64) as usize);
        }
    }
}

/// Both halves of the product of two words, combined.
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

/// A word in which each bit depends on all bits of `x`.
pub fn hash(x: u64) -> u64 {
    fold(x ^ 0x8ebc_6af0_9c88_c6e3, 0x5899_65cc_7537_4cc3 ^ x.rotate_left(32))
}

/// What a value is derived from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    pub seed: u64,
    pub partition: i64,
    /// The clustering key, 0 in tables without one.
    pub row: i32,
    /// 0 in tables without versions.
    pub version: i64,
}

impl Key {
    fn words(&self) -> Random {
        let partition = hash(hash(self.seed ^ 0x6d65_7373_696e_6121) ^ self.partition as u64);
        Random(hash(hash(partition ^ self.row as u64) ^ self.version as u64))
    }

    /// Fills `buffer` with the value.
    pub fn fill(&self, buffer: &mut [u8]) {
        let mut words = self.words();
        for chunk in buffer.chunks_mut(8) {
            chunk.copy_from_slice(&words.next().to_le_bytes()[..chunk.len()]);
        }
    }

    /// Whether `value` is the value of this key, with `size` bytes.
    pub fn matches(&self, size: usize, value: &[u8]) -> bool {
        let mut words = self.words();
        value.len() == size && value.chunks(8).all(|chunk| *chunk == words.next().to_le_bytes()[..chunk.len()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key { seed: 1, partition: 7, row: 3, version: 2 };

    fn value(key: Key, size: usize) -> Vec<u8> {
        let mut value = vec![0; size];
        key.fill(&mut value);
        value
    }

    #[test]
    fn a_value_matches_its_key_only() {
        for size in [1, 7, 8, 9, 200, 10_240] {
            let bytes = value(KEY, size);
            assert!(KEY.matches(size, &bytes));
            assert!(!KEY.matches(size + 1, &bytes) && !KEY.matches(size, &bytes[1..]));
        }
        let bytes = value(KEY, 200);
        for other in [
            Key { seed: 2, ..KEY },
            Key { partition: 8, ..KEY },
            Key { partition: -7, ..KEY },
            Key { row: 4, ..KEY },
            Key { version: 3, ..KEY },
            Key { partition: 3, row: 7, ..KEY },
        ] {
            assert!(!other.matches(200, &bytes), "{other:?}");
        }
    }

    #[test]
    fn every_flipped_bit_is_seen() {
        let mut bytes = value(KEY, 21);
        for bit in 0..21 * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(!KEY.matches(21, &bytes), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(KEY.matches(21, &bytes));
    }

    /// Data written by one build of this program is read by another.
    #[test]
    fn values_never_change() {
        assert_eq!(value(KEY, 12), [92, 207, 7, 61, 209, 240, 186, 242, 165, 124, 238, 65]);
        assert_eq!(Random::new(1, 0).next(), 14_328_989_171_408_995_910);
    }

    #[test]
    fn random_numbers_are_spread() {
        let mut random = Random::new(1, 5);
        let mut counts = [0; 10];
        let mut hits = 0;
        for _ in 0..100_000 {
            counts[random.below(10) as usize] += 1;
            hits += u32::from(random.chance(0.1));
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
        assert!((9_500..10_500).contains(&hits), "{hits}");
        assert!(!random.chance(0.0) && random.chance(1.0));
        let mut items: Vec<u32> = (0..100).collect();
        random.shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
    }
}
