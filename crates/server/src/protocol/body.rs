//! Decodes the notations of the protocol from the body of a request.
//!
//! Values are slices that share the frame's memory. Every length is checked against the remaining
//! bytes.

use super::Version;
use bytes::Bytes;
use cql::Error;
use cql::api::{BoundValue, MetadataId};

/// UTF-8 text that is a slice of a frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Text(Bytes);

impl Text {
    /// The text. It was validated when it was read; validating it again is cheaper than an
    /// allocation.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// A cursor over a body.
#[derive(Debug)]
pub struct Body {
    bytes: Bytes,
    at: usize,
}

fn protocol(message: impl Into<String>) -> Error {
    Error::Protocol(message.into())
}

impl Body {
    /// A cursor at the start of `bytes`.
    pub fn new(bytes: Bytes) -> Body {
        Body { bytes, at: 0 }
    }

    /// The number of remaining bytes.
    #[inline]
    pub fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The error for a body that ends within the next `n` bytes.
    #[cold]
    fn ends_within(&self, n: usize) -> Error {
        let (at, len) = (self.at, self.bytes.len());
        protocol(format!("Malformed frame: {n} bytes expected at offset {at} of a body of {len}"))
    }

    #[inline]
    fn take(&mut self, n: usize) -> Result<&[u8], Error> {
        if n > self.remaining() {
            return Err(self.ends_within(n));
        }
        let start = self.at;
        self.at += n;
        Ok(&self.bytes[start..self.at])
    }

    // Otherwise it depends on the rest of the crate whether it is inlined.
    #[inline(always)]
    fn slice(&mut self, n: usize) -> Result<Bytes, Error> {
        let start = self.at;
        self.take(n)?;
        Ok(self.bytes.slice(start..self.at))
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        match self.bytes[self.at..].first_chunk() {
            Some(array) => {
                self.at += N;
                Ok(*array)
            }
            None => Err(self.ends_within(N)),
        }
    }

    /// `[byte]`
    #[inline]
    pub fn byte(&mut self) -> Result<u8, Error> {
        Ok(self.array::<1>()?[0])
    }

    /// `[short]`
    #[inline]
    pub fn short(&mut self) -> Result<u16, Error> {
        Ok(u16::from_be_bytes(self.array()?))
    }

    /// `[int]`
    #[inline]
    pub fn int(&mut self) -> Result<i32, Error> {
        Ok(i32::from_be_bytes(self.array()?))
    }

    /// `[long]`
    pub fn long(&mut self) -> Result<i64, Error> {
        Ok(i64::from_be_bytes(self.array()?))
    }

    /// A count of items that have at least `each` bytes.
    #[inline]
    pub fn count(&mut self, each: usize) -> Result<usize, Error> {
        let count = usize::from(self.short()?);
        if count * each > self.remaining() {
            return Err(protocol(format!("Malformed frame: {count} items do not fit into {} bytes", self.remaining())));
        }
        Ok(count)
    }

    /// `[string]`
    pub fn string(&mut self) -> Result<&str, Error> {
        let len = usize::from(self.short()?);
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes).map_err(|_| protocol("Malformed frame: a string is not valid UTF-8"))
    }

    /// `[long string]`
    pub fn long_string(&mut self) -> Result<Text, Error> {
        let len = self.int()?;
        let len = usize::try_from(len).map_err(|_| protocol(format!("Malformed frame: a string of length {len}")))?;
        let bytes = self.slice(len)?;
        if std::str::from_utf8(&bytes).is_err() {
            return Err(protocol("Malformed frame: the query is not valid UTF-8"));
        }
        Ok(Text(bytes))
    }

    /// `[string list]`
    pub fn string_list(&mut self) -> Result<Vec<String>, Error> {
        let count = self.count(2)?;
        (0..count).map(|_| self.string().map(str::to_owned)).collect()
    }

    /// `[string map]`
    pub fn string_map(&mut self) -> Result<Vec<(String, String)>, Error> {
        let count = self.count(4)?;
        (0..count).map(|_| Ok((self.string()?.to_owned(), self.string()?.to_owned()))).collect()
    }

    /// `[bytes]`; any negative length is null.
    pub fn bytes(&mut self) -> Result<Option<Bytes>, Error> {
        match usize::try_from(self.int()?) {
            Ok(len) => Ok(Some(self.slice(len)?)),
            Err(_) => Ok(None),
        }
    }

    /// The `[short bytes]` of a prepared statement's id.
    #[inline]
    pub fn statement_id(&mut self) -> Result<[u8; 16], Error> {
        let len = self.short()?;
        if len != 16 {
            return Err(protocol(format!("Malformed frame: a statement id of {len} bytes; ids have 16")));
        }
        self.array()
    }

    /// The `[short bytes]` of a result's metadata id. An id of another length matches nothing and
    /// becomes zeros.
    pub fn metadata_id(&mut self) -> Result<MetadataId, Error> {
        let len = usize::from(self.short()?);
        Ok(self.take(len)?.try_into().unwrap_or_default())
    }

    /// `[value]`; before version 4 `[bytes]`, of which every negative length is null.
    #[inline]
    pub fn value(&mut self, version: Version) -> Result<BoundValue, Error> {
        let len = self.int()?;
        if let Ok(len) = usize::try_from(len) {
            return Ok(BoundValue::Value(self.slice(len)?));
        }
        match len {
            -1 => Ok(BoundValue::Null),
            _ if version < Version::V4 => Ok(BoundValue::Null),
            -2 => Ok(BoundValue::Unset),
            _ => Err(protocol(format!("Malformed frame: a value of length {len}"))),
        }
    }

    /// Skips a `[bytes map]`. Returns which of the keys it has.
    pub fn bytes_map_has<const N: usize>(&mut self, keys: [&str; N]) -> Result<[bool; N], Error> {
        let count = self.count(6)?;
        let mut found = [false; N];
        for _ in 0..count {
            let key = self.string()?;
            found.iter_mut().zip(keys).for_each(|(found, wanted)| *found |= key == wanted);
            self.bytes()?;
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(bytes: &[u8]) -> Body {
        Body::new(Bytes::copy_from_slice(bytes))
    }

    #[test]
    fn lengths_are_checked() {
        assert!(body(&[0, 5, b'a']).string().is_err());
        assert!(body(&[0xFF, 0xFF, 0xFF, 0xFF]).long_string().is_err());
        assert!(body(&[0x7F, 0xFF, 0xFF, 0xFF, 1]).long_string().is_err());
        assert!(body(&[0x7F, 0xFF, 0xFF, 0xFF, 1]).bytes().is_err());
        assert!(body(&[0, 2, 0xC3, 0x28]).string().is_err());
        assert!(body(&[0xFF, 0xFF, 0, 0]).string_map().is_err());
        assert!(body(&[0, 3, 1, 2, 3]).statement_id().is_err());
    }

    #[test]
    fn values_by_version() {
        let null = [0xFF, 0xFF, 0xFF, 0xFF];
        let unset = [0xFF, 0xFF, 0xFF, 0xFE];
        let absurd = [0xFF, 0xFF, 0xFF, 0xFD];
        assert_eq!(body(&null).value(Version::V3).ok(), Some(BoundValue::Null));
        assert_eq!(body(&unset).value(Version::V4).ok(), Some(BoundValue::Unset));
        assert_eq!(body(&unset).value(Version::V3).ok(), Some(BoundValue::Null));
        assert!(body(&absurd).value(Version::V4).is_err());
        assert_eq!(body(&[0, 0, 0, 1, 7]).value(Version::V4).ok(), Some(BoundValue::Value(Bytes::from_static(&[7]))));
    }
}
