//! The cardinality of partition keys: HyperLogLog++ with p = 13 and sp = 25, in the encoding that
//! other tools read.
//!
//! Few keys are stored as exact entries (the sparse form), more as 8192 registers of 5 bits (the
//! dense form).

use crate::input::{Fault, Input, Parsed};

const P: u32 = 13;
const SP: u32 = 25;
const REGISTERS: usize = 1 << P;
const PER_WORD: usize = 6;
const WORDS: usize = REGISTERS.div_ceil(PER_WORD);
/// The most entries of the sparse form. An entry takes about three bytes, the dense form 5.5 KiB.
const MAX_SPARSE: usize = 1500;
const MARK: i32 = -2;

/// An approximate counter of distinct keys.
#[derive(Clone, Debug, Default)]
pub struct Sketch {
    sparse: Vec<u32>,
    dense: Option<Box<[u8; REGISTERS]>>,
}

/// MurmurHash2, 64-bit, seed 0, with a sign-extended tail.
fn hash(key: &[u8]) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    let mut h = (key.len() as u64).wrapping_mul(M);
    let (blocks, tail) = key.as_chunks::<8>();
    for block in blocks {
        let mut k = u64::from_le_bytes(*block).wrapping_mul(M);
        k ^= k >> 47;
        h = (h ^ k.wrapping_mul(M)).wrapping_mul(M);
    }
    for (i, &byte) in tail.iter().enumerate() {
        h ^= (byte as i8 as i64 as u64) << (8 * i);
    }
    if !tail.is_empty() {
        h = h.wrapping_mul(M);
    }
    h = (h ^ (h >> 47)).wrapping_mul(M);
    h ^ (h >> 47)
}

fn register(hash: u64) -> (usize, u8) {
    ((hash >> (64 - P)) as usize, ((hash << P) | (1 << (P - 1))).leading_zeros() as u8 + 1)
}

impl Sketch {
    /// Counts a key.
    pub fn add(&mut self, key: &[u8]) {
        let hash = hash(key);
        if let Some(registers) = &mut self.dense {
            let (i, value) = register(hash);
            registers[i] = registers[i].max(value);
            return;
        }
        self.sparse.push(sparse_entry(hash));
        if self.sparse.len() > MAX_SPARSE {
            self.sparse_to_dense();
        }
    }

    fn sparse_to_dense(&mut self) {
        let mut registers = Box::new([0u8; REGISTERS]);
        for entry in self.sparse.drain(..) {
            let (i, value) = if entry & 1 == 0 {
                // The low bits of the 25-bit index are not all zero, so the value is within them.
                let index = (entry >> 1) as u64;
                register(index << (64 - SP) | 1)
            } else {
                ((entry >> 7 >> (SP - P)) as usize, (SP - P) as u8 + (entry >> 1 & 0x3f) as u8)
            };
            registers[i] = registers[i].max(value);
        }
        self.dense = Some(registers);
    }

    /// Part 1 of Statistics.db: be32 length and the sketch.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let mut body = Vec::new();
        body.extend_from_slice(&MARK.to_be_bytes());
        push_v7(P, &mut body);
        push_v7(SP, &mut body);
        match &self.dense {
            Some(registers) => {
                push_v7(0, &mut body);
                push_v7(WORDS as u32 * 4, &mut body);
                for six in registers.chunks(PER_WORD) {
                    let word =
                        six.iter().enumerate().fold(0u32, |word, (i, &value)| word | (value as u32 & 31) << (5 * i));
                    body.extend_from_slice(&word.to_be_bytes());
                }
            }
            None => {
                let mut entries = self.sparse.clone();
                entries.sort_unstable();
                entries.dedup();
                // Of entries with the same index, the one with the greatest value is kept.
                entries.dedup_by(|later, kept| {
                    let same = *later & *kept & 1 == 1 && *later >> 7 == *kept >> 7;
                    if same {
                        *kept = *later;
                    }
                    same
                });
                push_v7(1, &mut body);
                push_v7(entries.len() as u32, &mut body);
                let mut last = 0;
                for entry in entries {
                    push_v7(entry - last, &mut body);
                    last = entry;
                }
            }
        }
        out.extend_from_slice(&(body.len() as u32).to_be_bytes());
        out.extend_from_slice(&body);
    }

    /// The estimate of the sketch in a part 1. `None` for an unknown kind of sketch.
    pub(crate) fn estimate(part: &[u8]) -> Parsed<Option<u64>> {
        let mut input = Input(part);
        let len = input.be32()? as usize;
        let mut input = Input(input.take(len)?);
        if input.be32()? as i32 != MARK || read_v7(&mut input)? != P || read_v7(&mut input)? != SP {
            return Ok(None);
        }
        if read_v7(&mut input)? == 1 {
            return Ok(Some(read_v7(&mut input)? as u64));
        }
        read_v7(&mut input)?;
        let (mut sum, mut zeros, mut seen) = (0.0f64, 0u32, 0);
        while seen < REGISTERS {
            let word = input.be32()?;
            for i in 0..PER_WORD.min(REGISTERS - seen) {
                let value = word >> (5 * i) & 31;
                zeros += (value == 0) as u32;
                sum += 1.0 / (1u64 << value) as f64;
                seen += 1;
            }
        }
        let m = REGISTERS as f64;
        let raw = 0.7213 / (1.0 + 1.079 / m) * m * m / sum;
        let linear = m * (m / zeros as f64).ln();
        Ok(Some(if raw <= 2.5 * m && zeros > 0 { linear } else { raw } as u64))
    }
}

fn sparse_entry(hash: u64) -> u32 {
    let index = (hash >> (64 - SP)) as u32;
    if index & ((1 << (SP - P)) - 1) != 0 {
        return index << 1;
    }
    let zeros = ((hash << SP) | (1 << (SP - 1))).leading_zeros() + 1;
    index << 7 | zeros << 1 | 1
}

fn push_v7(mut value: u32, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn read_v7(input: &mut Input<'_>) -> Parsed<u32> {
    let mut value = 0u32;
    for shift in [0, 7, 14, 21, 28] {
        let byte = input.u8()?;
        value |= ((byte & 0x7f) as u32) << shift;
        if byte < 0x80 {
            return Ok(value);
        }
    }
    Err(Fault::Bad("a number in a sketch is too long"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_near_and_forms_agree() {
        let mut sketch = Sketch::default();
        let mut registers = vec![0u8; REGISTERS];
        for n in 1..=50_000u32 {
            let key = n.to_be_bytes();
            sketch.add(&key);
            let (i, value) = register(hash(&key));
            registers[i] = registers[i].max(value);
            if matches!(n, 10 | 1500 | 1501 | 10_000 | 50_000) {
                let mut out = Vec::new();
                sketch.write(&mut out);
                let estimate = Sketch::estimate(&out).expect("well formed").expect("known") as f64;
                assert!((estimate - n as f64).abs() < 0.07 * n as f64 + 1.0, "{n}: {estimate}");
            }
        }
        // Registers made from sparse entries equal registers that were counted directly.
        assert_eq!(&sketch.dense.expect("many keys")[..], &registers[..]);
    }

    #[test]
    fn the_empty_sketch_is_the_shortest_valid_one() {
        let mut out = Vec::new();
        Sketch::default().write(&mut out);
        assert_eq!(out, [0, 0, 0, 8, 0xff, 0xff, 0xff, 0xfe, 0x0d, 0x19, 0x01, 0x00]);
    }
}
