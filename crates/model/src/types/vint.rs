//! Variable-length integers, as in durations, vectors and sstables.
//!
//! An unsigned vint has as many leading one bits in its first byte as bytes follow; the rest is
//! big-endian. A signed vint is zigzag-encoded first. Writers always use the shortest form; readers
//! accept any.

/// The number of bytes (1 to 9) that [`write_unsigned`] uses for `value`.
#[inline]
pub const fn unsigned_len(value: u64) -> usize {
    let bits = 64 - (value | 1).leading_zeros() as usize;
    if bits > 56 { 9 } else { bits.div_ceil(7) }
}

/// Zigzag: small magnitudes become small unsigned numbers.
#[inline]
pub const fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
#[inline]
pub const fn unzigzag(value: u64) -> i64 {
    ((value >> 1) as i64) ^ -((value & 1) as i64)
}

/// Appends `value`.
#[inline]
pub fn write_unsigned(value: u64, out: &mut Vec<u8>) {
    let len = unsigned_len(value);
    if len == 9 {
        out.push(0xff);
        out.extend_from_slice(&value.to_be_bytes());
        return;
    }
    let extra = len - 1;
    // One leading bit for each byte that follows; the top bits of the value share the first byte.
    let marked = value | (!(0xffu64 >> extra) & 0xff) << (8 * extra);
    out.extend_from_slice(&marked.to_be_bytes()[8 - len..]);
}

/// Appends `value`, zigzagged.
#[inline]
pub fn write_signed(value: i64, out: &mut Vec<u8>) {
    write_unsigned(zigzag(value), out);
}

/// Takes an unsigned vint from the front of `input`. `None`, with `input` unchanged, if the bytes
/// end too early.
#[inline]
pub fn read_unsigned(input: &mut &[u8]) -> Option<u64> {
    let (&first, rest) = input.split_first()?;
    if first < 0x80 {
        *input = rest;
        return Some(u64::from(first));
    }
    let extra = first.leading_ones() as usize;
    let (body, rest) = rest.split_at_checked(extra)?;
    let top = if extra >= 7 { 0 } else { u64::from(first) & (0x7f >> extra) };
    let value = body.iter().fold(top, |value, &byte| value << 8 | u64::from(byte));
    *input = rest;
    Some(value)
}

/// Takes a signed vint from the front of `input`. `None`, with `input` unchanged, if the bytes end
/// too early.
#[inline]
pub fn read_signed(input: &mut &[u8]) -> Option<i64> {
    read_unsigned(input).map(unzigzag)
}
