//! A cursor over bytes of a file. Parsing never panics. Missing bytes are [`Fault::Short`], so that
//! a caller with a window of a longer file can load more and parse again. Anything invalid is
//! [`Fault::Bad`].

use crate::error::Error;
use model::time::{Seconds, Timestamp, Tombstone};
use std::path::Path;

/// Why parsing stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The bytes end too early.
    Short,
    /// The bytes are invalid.
    Bad(&'static str),
}

impl Fault {
    /// The error, for a caller that has no more bytes.
    pub fn at(self, file: &Path, offset: u64) -> Error {
        match self {
            Fault::Short => Error::corrupt(file, offset, "the data ends too early"),
            Fault::Bad(why) => Error::corrupt(file, offset, why),
        }
    }
}

pub(crate) type Parsed<T> = Result<T, Fault>;

/// The unread bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    #[inline]
    fn array<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(Fault::Short)?;
        self.0 = tail;
        Ok(*head)
    }

    #[inline]
    pub fn u8(&mut self) -> Parsed<u8> {
        self.array::<1>().map(|[b]| b)
    }

    #[inline]
    pub fn be16(&mut self) -> Parsed<u16> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    pub fn be32(&mut self) -> Parsed<u32> {
        self.array().map(u32::from_be_bytes)
    }

    #[inline]
    pub fn be64(&mut self) -> Parsed<u64> {
        self.array().map(u64::from_be_bytes)
    }

    pub fn f64(&mut self) -> Parsed<f64> {
        self.array().map(f64::from_be_bytes)
    }

    pub fn le32(&mut self) -> Parsed<u32> {
        self.array().map(u32::from_le_bytes)
    }

    /// The next `n` bytes.
    #[inline]
    pub fn take(&mut self, n: usize) -> Parsed<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(n).ok_or(Fault::Short)?;
        self.0 = tail;
        Ok(head)
    }

    /// An unsigned vint.
    #[inline]
    pub fn uvint(&mut self) -> Parsed<u64> {
        let first = *self.0.first().ok_or(Fault::Short)?;
        if first < 0x80 {
            self.0 = &self.0[1..];
            return Ok(first as u64);
        }
        let extra = first.leading_ones() as usize;
        if extra < 8
            && let Some(head) = self.0.first_chunk::<8>()
        {
            let whole = u64::from_be_bytes(*head);
            self.0 = &self.0[extra + 1..];
            return Ok((whole << extra << 1 >> 1 >> extra) >> (8 * (7 - extra)));
        }
        let body = self.0.get(1..1 + extra).ok_or(Fault::Short)?;
        let top = if extra >= 7 { 0 } else { (first as u64) & (0x7f >> extra) };
        let value = body.iter().fold(top, |value, &byte| value << 8 | byte as u64);
        self.0 = &self.0[1 + extra..];
        Ok(value)
    }

    /// An unsigned vint that counts or measures something in memory.
    #[inline]
    pub fn size(&mut self) -> Parsed<usize> {
        usize::try_from(self.uvint()?).map_err(|_| Fault::Bad("a length is out of range"))
    }

    /// A signed vint.
    pub fn svint(&mut self) -> Parsed<i64> {
        self.uvint().map(model::types::vint::unzigzag)
    }

    /// Bytes with a uvint length before them.
    #[inline]
    pub fn vbytes(&mut self) -> Parsed<&'a [u8]> {
        let len = self.size()?;
        self.take(len)
    }

    /// Bytes with a be16 length before them.
    #[inline]
    pub fn bytes16(&mut self) -> Parsed<&'a [u8]> {
        let len = self.be16()? as usize;
        self.take(len)
    }

    /// Text with a be16 length before it.
    pub fn utf(&mut self) -> Parsed<&'a str> {
        std::str::from_utf8(self.bytes16()?).map_err(|_| Fault::Bad("a text is not UTF-8"))
    }

    /// A deletion time in fixed form.
    pub fn deletion(&mut self) -> Parsed<Tombstone> {
        let deletion_time = self.be32()? as Seconds;
        let timestamp = self.be64()? as Timestamp;
        Ok(tombstone(timestamp, deletion_time))
    }
}

/// The tombstone as read. The timestamp of LIVE means no tombstone, whatever the deletion time is.
#[inline]
pub(crate) fn tombstone(timestamp: Timestamp, deletion_time: Seconds) -> Tombstone {
    if timestamp == Timestamp::MIN { Tombstone::LIVE } else { Tombstone::new(timestamp, deletion_time) }
}

/// Appends a deletion time in fixed form.
pub(crate) fn write_deletion(tombstone: Tombstone, out: &mut Vec<u8>) {
    out.extend_from_slice(&tombstone.deletion_time.to_be_bytes());
    out.extend_from_slice(&tombstone.timestamp.to_be_bytes());
}

/// Appends text with a be16 length.
pub(crate) fn write_utf(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Appends bytes with a uvint length.
pub(crate) fn write_vbytes(bytes: &[u8], out: &mut Vec<u8>) {
    model::types::vint::write_unsigned(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::types::vint::{unsigned_len, write_unsigned};

    #[test]
    fn vints_round_trip_with_and_without_trailing_bytes() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1 << shift) - 1, u64::MAX >> shift, (u64::MAX >> shift) ^ 1] {
                for tail in [0, 12] {
                    let mut out = Vec::new();
                    write_unsigned(value, &mut out);
                    assert_eq!(out.len(), unsigned_len(value));
                    out.resize(out.len() + tail, 0xAB);
                    let mut input = Input(&out);
                    assert_eq!(input.uvint(), Ok(value), "{value:x}");
                    assert_eq!(input.0.len(), tail);
                }
            }
        }
        assert_eq!(Input(&[0x81]).uvint(), Err(Fault::Short));
        assert_eq!(Input(&[]).uvint(), Err(Fault::Short));
    }
}
