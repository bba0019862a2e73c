//! Tokens: the positions of partition keys on the ring.
//!
//! The hash is Cassandra's variant of MurmurHash3 x64 128 (seed 0): the bytes of the last, partial
//! block are sign-extended before they are mixed in. The bloom filters of sstables use the same
//! function.
//!
//! Invariant: [`of_key`] returns `i64::MIN` for the empty key only, so that value can mean "before
//! everything".

use serde::{Deserialize, Serialize};

/// A position on the ring, ordered as a signed number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Token(pub i64);

impl Token {
    /// Before the token of every key. As the end of a range, it means "after all".
    pub const MIN: Token = Token(i64::MIN);
    /// The greatest token.
    pub const MAX: Token = Token(i64::MAX);

    /// The token as an unsigned number in the same order, to split the ring by leading bits.
    #[inline]
    pub const fn to_unsigned(self) -> u64 {
        (self.0 as u64) ^ (1 << 63)
    }
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::str::FromStr for Token {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Token)
    }
}

/// The token of a serialised partition key.
#[inline]
pub fn of_key(key: &[u8]) -> Token {
    if key.is_empty() {
        return Token::MIN;
    }
    let (low, _) = hash128(key);
    let token = low as i64;
    Token(if token == i64::MIN { i64::MAX } else { token })
}

const C1: u64 = 0x87c3_7b91_1142_53d5;
const C2: u64 = 0x4cf5_ad43_2745_937f;

#[inline(always)]
fn mix1(k: u64) -> u64 {
    k.wrapping_mul(C1).rotate_left(31).wrapping_mul(C2)
}

#[inline(always)]
fn mix2(k: u64) -> u64 {
    k.wrapping_mul(C2).rotate_left(33).wrapping_mul(C1)
}

#[inline(always)]
fn finish(mut k: u64) -> u64 {
    k = (k ^ (k >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    k = (k ^ (k >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    k ^ (k >> 33)
}

/// Up to 8 bytes as a little-endian number, each sign-extended to 64 bits and then shifted and
/// xored.
#[inline(always)]
fn signed_tail(bytes: &[u8]) -> u64 {
    let plain = match bytes.first_chunk() {
        Some(all) => u64::from_le_bytes(*all),
        None => bytes.iter().rev().fold(0, |k, &b| k << 8 | u64::from(b)),
    };
    // The sign of a negative byte inverts all bytes above it: the lowest bit of each byte becomes
    // the parity of the negative bytes below it.
    let mut inverted = (plain & 0x8080_8080_8080_8080) << 1;
    for shift in [8, 16, 32] {
        inverted ^= inverted << shift;
    }
    plain ^ inverted.wrapping_mul(0xff)
}

/// The 128-bit hash of `data` as (low, high) halves.
#[inline]
pub fn hash128(data: &[u8]) -> (u64, u64) {
    let (blocks, tail) = data.as_chunks::<16>();
    let (mut h1, mut h2) = (0u64, 0u64);
    for block in blocks {
        let whole = u128::from_le_bytes(*block);
        h1 ^= mix1(whole as u64);
        h1 = h1.rotate_left(27).wrapping_add(h2).wrapping_mul(5).wrapping_add(0x52dc_e729);
        h2 ^= mix2((whole >> 64) as u64);
        h2 = h2.rotate_left(31).wrapping_add(h1).wrapping_mul(5).wrapping_add(0x3849_5ab5);
    }
    if tail.len() > 8 {
        h2 ^= mix2(signed_tail(&tail[8..]));
    }
    if !tail.is_empty() {
        h1 ^= mix1(signed_tail(&tail[..tail.len().min(8)]));
    }
    h1 ^= data.len() as u64;
    h2 ^= data.len() as u64;
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    h1 = finish(h1);
    h2 = finish(h2);
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    (h1, h2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Keys in the order in which Cassandra wrote their partitions.
    fn assert_strictly_ascending(keys: impl Iterator<Item = Vec<u8>>, count: usize) {
        let tokens: Vec<Token> = keys.map(|key| of_key(&key)).collect();
        assert_eq!(tokens.len(), count);
        for (i, pair) in tokens.windows(2).enumerate() {
            assert!(pair[0] < pair[1], "key {i} should come before the next one: {pair:?}");
        }
    }

    proptest! {
        #[test]
        fn the_tail_is_sign_extended_byte_by_byte(bytes in proptest::collection::vec(any::<u8>(), 0..=8)) {
            let extended = |(i, &b): (usize, &u8)| (b as i8 as i64 as u64) << (8 * i);
            let expected = bytes.iter().enumerate().map(extended).fold(0, |k, extended| k ^ extended);
            prop_assert_eq!(signed_tail(&bytes), expected);
        }
    }

    #[test]
    fn text_keys_order_as_cassandra_wrote_them() {
        let numbers = include_str!("testdata/cassandra_text_keys.txt").split_whitespace();
        assert_strictly_ascending(numbers.map(|n| format!("key {n}").into_bytes()), 1000);
    }

    #[test]
    fn int_keys_order_as_cassandra_wrote_them() {
        let numbers = include_str!("testdata/cassandra_int_keys.txt").split_whitespace();
        assert_strictly_ascending(numbers.map(|n| n.parse::<i32>().unwrap().to_be_bytes().to_vec()), 130);
    }

    #[test]
    fn known_tokens() {
        assert_eq!(of_key(&1i32.to_be_bytes()), Token(-4069959284402364209));
        assert_eq!(of_key(&2i32.to_be_bytes()), Token(-3248873570005575792));
        assert_eq!(of_key(&3i32.to_be_bytes()), Token(9010454139840013625));
        assert_eq!(of_key(b""), Token::MIN);
    }

    /// The definition, byte by byte, with the sign extension of the tail written out.
    fn slow_hash(data: &[u8]) -> (u64, u64) {
        let le = |bytes: &[u8]| bytes.iter().rev().fold(0u64, |k, &b| k << 8 | u64::from(b));
        let (mut h1, mut h2) = (0u64, 0u64);
        let whole = data.len() / 16 * 16;
        for at in (0..whole).step_by(16) {
            h1 ^= mix1(le(&data[at..at + 8]));
            h1 = h1.rotate_left(27).wrapping_add(h2).wrapping_mul(5).wrapping_add(0x52dce729);
            h2 ^= mix2(le(&data[at + 8..at + 16]));
            h2 = h2.rotate_left(31).wrapping_add(h1).wrapping_mul(5).wrapping_add(0x38495ab5);
        }
        let (mut k1, mut k2) = (0u64, 0u64);
        for (i, &byte) in data[whole..].iter().enumerate() {
            let extended = if byte >= 0x80 { u64::from(byte) | 0xffff_ffff_ffff_ff00 } else { u64::from(byte) };
            if i < 8 { k1 ^= extended << (8 * i) } else { k2 ^= extended << (8 * (i - 8)) }
        }
        h2 ^= mix2(k2);
        h1 ^= mix1(k1);
        h1 ^= data.len() as u64;
        h2 ^= data.len() as u64;
        h1 = h1.wrapping_add(h2);
        h2 = h2.wrapping_add(h1);
        (h1, h2) = (finish(h1), finish(h2));
        h1 = h1.wrapping_add(h2);
        (h1, h2.wrapping_add(h1))
    }

    proptest! {
        #[test]
        fn fast_hash_is_the_defined_one(data in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(hash128(&data), slow_hash(&data));
        }

        #[test]
        fn only_the_empty_key_has_the_least_token(data in proptest::collection::vec(any::<u8>(), 1..40)) {
            prop_assert!(of_key(&data) > Token::MIN);
        }

        #[test]
        fn unsigned_tokens_order_the_same(a: i64, b: i64) {
            prop_assert_eq!(a.cmp(&b), Token(a).to_unsigned().cmp(&Token(b).to_unsigned()));
        }
    }
}
