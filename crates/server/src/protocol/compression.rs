//! Compressed bodies: LZ4 (32-bit big-endian length, then one block) and Snappy (raw block).
//!
//! A body is decompressed only if the claimed length is allowed, and possible for the compressed
//! size.

use bytes::Bytes;
use cql::Error;
use std::fmt;

/// Shorter bodies are not compressed. In bytes.
pub const MIN_COMPRESSED: usize = 512;

/// The maximum compression ratio of LZ4.
const LZ4_MAX_RATIO: usize = 255;
/// The maximum compression ratio of Snappy: a copy of 64 bytes takes 3 bytes.
const SNAPPY_MAX_RATIO: usize = 32;

/// The compression of a connection's bodies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Compression {
    Lz4,
    Snappy,
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Compression::Lz4 => "lz4",
            Compression::Snappy => "snappy",
        })
    }
}

impl Compression {
    /// The compression with this name in STARTUP, in any case.
    pub fn from_name(name: &str) -> Option<Compression> {
        if name.eq_ignore_ascii_case("lz4") {
            Some(Compression::Lz4)
        } else if name.eq_ignore_ascii_case("snappy") {
            Some(Compression::Snappy)
        } else {
            None
        }
    }

    /// Compresses `body` and appends the result to `out`.
    pub fn compress(self, body: &[u8], out: &mut Vec<u8>) {
        match self {
            Compression::Lz4 => {
                out.extend_from_slice(&(body.len() as u32).to_be_bytes());
                let start = out.len();
                out.resize(start + lz4_flex::block::get_maximum_output_size(body.len()), 0);
                // The output buffer is large enough for any input.
                let len = lz4_flex::block::compress_into(body, &mut out[start..]).unwrap_or_default();
                debug_assert!(len > 0, "no answer is lost in its compression");
                out.truncate(start + len);
            }
            Compression::Snappy => {
                let start = out.len();
                out.resize(start + snap::raw::max_compress_len(body.len()), 0);
                let len = snap::raw::Encoder::new().compress(body, &mut out[start..]).unwrap_or_default();
                debug_assert!(len > 0, "no answer is lost in its compression");
                out.truncate(start + len);
            }
        }
    }

    /// The decompressed length that `compressed` claims in its first bytes. `None` if they are
    /// missing.
    pub fn claimed_len(self, compressed: &[u8]) -> Option<usize> {
        match self {
            Compression::Lz4 => compressed.first_chunk::<4>().map(|len| u32::from_be_bytes(*len) as usize),
            Compression::Snappy => snap::raw::decompress_len(compressed).ok(),
        }
    }

    /// Decompresses a body of at most `max` bytes.
    pub fn decompress(self, compressed: &[u8], max: usize) -> Result<Bytes, Error> {
        let bad = || Error::Protocol(format!("Cannot decompress the frame's body as {self}"));
        let (claimed, block, ratio) = match self {
            Compression::Lz4 => {
                let (len, block) = compressed.split_first_chunk::<4>().ok_or_else(bad)?;
                (u32::from_be_bytes(*len) as usize, block, LZ4_MAX_RATIO)
            }
            Compression::Snappy => {
                (snap::raw::decompress_len(compressed).map_err(|_| bad())?, compressed, SNAPPY_MAX_RATIO)
            }
        };
        if claimed > max {
            return Err(Error::Invalid(format!(
                "Request is too big: length {claimed} exceeds maximum allowed length {max}"
            )));
        }
        if claimed / ratio > block.len() {
            return Err(bad());
        }
        if claimed == 0 {
            return Ok(Bytes::new());
        }
        let mut body = vec![0; claimed];
        let len = match self {
            Compression::Lz4 => lz4_flex::block::decompress_into(block, &mut body).map_err(|_| bad())?,
            Compression::Snappy => snap::raw::Decoder::new().decompress(block, &mut body).map_err(|_| bad())?,
        };
        if len != claimed {
            return Err(bad());
        }
        Ok(Bytes::from(body))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn round_trip(body in prop::collection::vec(0u8..4, 0..5000)) {
            for compression in [Compression::Lz4, Compression::Snappy] {
                let mut out = vec![9];
                compression.compress(&body, &mut out);
                prop_assert_eq!(compression.decompress(&out[1..], 5000).ok(), Some(Bytes::from(body.clone())));
            }
        }

        #[test]
        fn garbage_is_refused_or_opened_but_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for compression in [Compression::Lz4, Compression::Snappy] {
                let _ = compression.decompress(&bytes, 1 << 20);
            }
        }
    }

    #[test]
    fn a_body_of_one_byte_repeated_opens() {
        for compression in [Compression::Lz4, Compression::Snappy] {
            let body = vec![7; 1 << 20];
            let mut out = Vec::new();
            compression.compress(&body, &mut out);
            assert_eq!(compression.decompress(&out, 1 << 20).map(|b| b.len()).ok(), Some(1 << 20));
        }
    }

    #[test]
    fn the_claim_is_in_the_first_bytes() {
        for compression in [Compression::Lz4, Compression::Snappy] {
            let mut out = Vec::new();
            compression.compress(&vec![7; 1 << 20], &mut out);
            assert_eq!(compression.claimed_len(&out[..5]), Some(1 << 20));
        }
        assert_eq!(Compression::Lz4.claimed_len(&[0, 0, 1]), None);
    }

    #[test]
    fn a_false_decompressed_length_is_refused() {
        let bomb = [0x0F, 0xFF, 0xFF, 0xFF, 0, 0];
        assert!(matches!(Compression::Lz4.decompress(&bomb, usize::MAX), Err(Error::Protocol(_))));
        assert!(matches!(Compression::Lz4.decompress(&bomb, 1000), Err(Error::Invalid(_))));
    }
}
