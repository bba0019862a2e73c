//! Compression of Data.db: the algorithms, CompressionInfo.db, and the packed positions of chunks.
//!
//! The content is divided into chunks of one length. Each is stored compressed, followed by the
//! CRC32 of its stored bytes.

use crate::error::Error;
use crate::generation::Version;
use crate::input::{Fault, Input, Parsed, write_utf};
use std::io::{Read as _, Write as _};
use std::path::Path;

/// The compression of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Algorithm {
    /// LZ4 blocks after their length (little-endian).
    Lz4,
    /// Raw Snappy blocks.
    Snappy,
    /// zlib streams.
    Deflate,
    /// Zstandard frames.
    Zstd,
    /// No compression: chunks only get checksums (Cassandra 4).
    Noop,
}

/// The compression of a new sstable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Compression {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Content bytes per chunk, a power of two.
    pub chunk_length: usize,
}

/// The lengths that a chunk may have.
pub(crate) const CHUNK_LENGTHS: std::ops::RangeInclusive<usize> = 256..=16 << 20;
/// The level of Zstandard and Deflate.
const ZSTD_LEVEL: i32 = 3;

impl Algorithm {
    const ALL: [Algorithm; 5] =
        [Algorithm::Lz4, Algorithm::Snappy, Algorithm::Deflate, Algorithm::Zstd, Algorithm::Noop];

    /// The class name, without its package.
    pub fn class_name(self) -> &'static str {
        match self {
            Algorithm::Lz4 => "LZ4Compressor",
            Algorithm::Snappy => "SnappyCompressor",
            Algorithm::Deflate => "DeflateCompressor",
            Algorithm::Zstd => "ZstdCompressor",
            Algorithm::Noop => "NoopCompressor",
        }
    }

    /// The algorithm of a class name, with or without a package.
    pub fn of_class(name: &str) -> Option<Algorithm> {
        let short = name.rsplit('.').next()?;
        Algorithm::ALL.into_iter().find(|algorithm| algorithm.class_name() == short)
    }

    /// Appends the compressed form of `content`.
    pub(crate) fn compress(self, content: &[u8], out: &mut Vec<u8>) -> std::io::Result<()> {
        let start = out.len();
        match self {
            Algorithm::Lz4 => {
                out.extend_from_slice(&(content.len() as u32).to_le_bytes());
                let room = lz4_flex::block::get_maximum_output_size(content.len());
                out.resize(start + 4 + room, 0);
                let n =
                    lz4_flex::block::compress_into(content, &mut out[start + 4..]).map_err(std::io::Error::other)?;
                out.truncate(start + 4 + n);
            }
            Algorithm::Snappy => {
                out.resize(start + snap::raw::max_compress_len(content.len()), 0);
                let n = snap::raw::Encoder::new().compress(content, &mut out[start..])?;
                out.truncate(start + n);
            }
            Algorithm::Deflate => {
                let mut encoder = flate2::write::ZlibEncoder::new(&mut *out, flate2::Compression::default());
                encoder.write_all(content)?;
                encoder.finish()?;
            }
            Algorithm::Zstd => out.extend_from_slice(&zstd::bulk::compress(content, ZSTD_LEVEL)?),
            Algorithm::Noop => out.extend_from_slice(content),
        }
        Ok(())
    }

    /// Fills `out` with the content of a stored chunk. False if the bytes do not decompress to
    /// exactly that length.
    pub(crate) fn decompress(self, stored: &[u8], out: &mut [u8]) -> bool {
        match self {
            Algorithm::Lz4 => {
                let Some((len, block)) = stored.split_first_chunk::<4>() else { return false };
                u32::from_le_bytes(*len) as usize == out.len()
                    && lz4_flex::block::decompress_into(block, out).is_ok_and(|n| n == out.len())
            }
            Algorithm::Snappy => {
                snap::raw::decompress_len(stored).is_ok_and(|n| n == out.len())
                    && snap::raw::Decoder::new().decompress(stored, out).is_ok()
            }
            Algorithm::Deflate => {
                let mut decoder = flate2::read::ZlibDecoder::new(stored);
                decoder.read_exact(out).is_ok() && decoder.read(&mut [0]).is_ok_and(|n| n == 0)
            }
            Algorithm::Zstd => zstd::bulk::decompress_to_buffer(stored, out).is_ok_and(|n| n == out.len()),
            Algorithm::Noop => {
                let whole = stored.len() == out.len();
                if whole {
                    out.copy_from_slice(stored);
                }
                whole
            }
        }
    }
}

/// Ascending offsets in about two bytes each: the length of each piece, and every 64th offset.
#[derive(Clone, Debug)]
pub(crate) struct PackedOffsets {
    whole: Vec<u64>,
    lengths: Lengths,
    end: u64,
}

#[derive(Clone, Debug)]
enum Lengths {
    Short(Vec<u16>),
    Long(Vec<u32>),
}

const GROUP: usize = 64;

impl PackedOffsets {
    pub fn new() -> Self {
        PackedOffsets { whole: Vec::new(), lengths: Lengths::Short(Vec::new()), end: 0 }
    }

    pub fn len(&self) -> usize {
        match &self.lengths {
            Lengths::Short(lengths) => lengths.len(),
            Lengths::Long(lengths) => lengths.len(),
        }
    }

    /// Appends a piece of this length. Returns false if the length does not fit in a `u32`, which
    /// is more than any chunk can have.
    pub fn push(&mut self, length: u64) -> bool {
        let Ok(long) = u32::try_from(length) else { return false };
        if self.len().is_multiple_of(GROUP) {
            self.whole.push(self.end);
        }
        if let (Lengths::Short(lengths), Err(_)) = (&self.lengths, u16::try_from(length)) {
            self.lengths = Lengths::Long(lengths.iter().map(|&l| l as u32).collect());
        }
        match &mut self.lengths {
            Lengths::Short(lengths) => lengths.push(long as u16),
            Lengths::Long(lengths) => lengths.push(long),
        }
        self.end += length;
        true
    }

    /// The offset of piece `i`; the end, if `i` is the number of pieces. `i` must not be greater.
    pub fn get(&self, i: usize) -> u64 {
        debug_assert!(i <= self.len(), "a chunk of the file is asked for");
        if i >= self.len() {
            return self.end;
        }
        let first = i - i % GROUP;
        let within = match &self.lengths {
            Lengths::Short(lengths) => lengths[first..i].iter().map(|&l| l as u64).sum::<u64>(),
            Lengths::Long(lengths) => lengths[first..i].iter().map(|&l| l as u64).sum::<u64>(),
        };
        self.whole[i / GROUP] + within
    }

    pub fn memory_bytes(&self) -> usize {
        self.whole.capacity() * 8
            + match &self.lengths {
                Lengths::Short(lengths) => lengths.capacity() * 2,
                Lengths::Long(lengths) => lengths.capacity() * 4,
            }
    }

    pub fn shrink(&mut self) {
        self.whole.shrink_to_fit();
        match &mut self.lengths {
            Lengths::Short(lengths) => lengths.shrink_to_fit(),
            Lengths::Long(lengths) => lengths.shrink_to_fit(),
        }
    }
}

/// CompressionInfo.db.
#[derive(Clone, Debug)]
pub(crate) struct CompressionInfo {
    pub algorithm: Algorithm,
    /// Names and values. Messina only shows them.
    pub options: Vec<(String, String)>,
    pub chunk_length: usize,
    pub content_length: u64,
    /// From version `na` on: chunks stored with at least this length are not compressed.
    pub max_compressed: usize,
    pub offsets: PackedOffsets,
}

impl CompressionInfo {
    /// Parses the file. `data_length` is the length of Data.db, where the last chunk ends.
    pub fn read(bytes: &[u8], version: Version, data_length: u64, file: &Path) -> Result<Self, Error> {
        let mut input = Input(bytes);
        let corrupt = |fault: Fault| fault.at(file, 0);
        let name = input.utf().map_err(corrupt)?;
        let algorithm = Algorithm::of_class(name)
            .ok_or_else(|| Error::Unsupported(format!("{}: compressor {name}", file.display())))?;
        Self::rest(&mut input, algorithm, version, data_length).map_err(corrupt)
    }

    fn rest(input: &mut Input<'_>, algorithm: Algorithm, version: Version, data_length: u64) -> Parsed<Self> {
        let mut options = Vec::new();
        for _ in 0..input.be32()? {
            options.push((input.utf()?.to_owned(), input.utf()?.to_owned()));
        }
        let chunk_length = input.be32()? as usize;
        if !CHUNK_LENGTHS.contains(&chunk_length) || !chunk_length.is_power_of_two() {
            return Err(Fault::Bad("the chunk length is not valid"));
        }
        let max_compressed = if version.is_n() { input.be32()? as usize } else { usize::MAX };
        let content_length = input.be64()?;
        let chunks = input.be32()? as u64;
        let wanted = content_length.div_ceil(chunk_length as u64);
        // Older files have one more chunk, which is empty.
        if chunks != wanted && chunks != wanted + 1 {
            return Err(Fault::Bad("the number of chunks does not match the length of the content"));
        }
        let mut offsets = PackedOffsets::new();
        let mut last = 0;
        for i in 0..chunks {
            let offset = input.be64()?;
            if i == 0 && offset != 0 {
                return Err(Fault::Bad("the first chunk offset is not 0"));
            }
            if i > 0 && i <= wanted {
                push_chunk(&mut offsets, last, offset)?;
            }
            last = offset;
        }
        if chunks == wanted && chunks > 0 {
            push_chunk(&mut offsets, last, data_length)?;
        }
        if !input.0.is_empty() {
            return Err(Fault::Bad("bytes follow the last chunk offset"));
        }
        offsets.shrink();
        Ok(CompressionInfo { algorithm, options, chunk_length, content_length, max_compressed, offsets })
    }

    /// The bytes of the file in version `me`.
    pub fn write(&self) -> Vec<u8> {
        debug_assert!(CHUNK_LENGTHS.contains(&self.chunk_length), "an sstable that is written can be read");
        debug_assert_eq!(
            self.offsets.len() as u64,
            self.content_length.div_ceil(self.chunk_length as u64),
            "each chunk has an offset"
        );
        let mut out = Vec::with_capacity(64 + 8 * self.offsets.len());
        write_utf(self.algorithm.class_name(), &mut out);
        out.extend_from_slice(&0u32.to_be_bytes());
        out.extend_from_slice(&(self.chunk_length as u32).to_be_bytes());
        out.extend_from_slice(&self.content_length.to_be_bytes());
        out.extend_from_slice(&(self.offsets.len() as u32).to_be_bytes());
        for i in 0..self.offsets.len() {
            out.extend_from_slice(&self.offsets.get(i).to_be_bytes());
        }
        out
    }
}

fn push_chunk(offsets: &mut PackedOffsets, start: u64, end: u64) -> Parsed<()> {
    match end.checked_sub(start) {
        Some(length) if length > 4 && offsets.push(length) => Ok(()),
        _ => Err(Fault::Bad("the length of a chunk by its offset is not valid")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_algorithm_round_trips_and_refuses_other_lengths() {
        let content: Vec<u8> = (0..5000u32).map(|i| (i * i / 7) as u8).collect();
        for algorithm in Algorithm::ALL {
            for content in [&content[..], &content[..1], &[]] {
                let mut stored = vec![9];
                algorithm.compress(content, &mut stored).expect("memory is enough");
                let mut out = vec![0; content.len()];
                assert!(algorithm.decompress(&stored[1..], &mut out), "{algorithm:?}");
                assert_eq!(out, content);
                assert!(!algorithm.decompress(&stored[1..], &mut vec![0; content.len() + 1]), "{algorithm:?}");
            }
        }
    }

    #[test]
    fn packed_offsets_are_the_offsets() {
        for long in [false, true] {
            let mut packed = PackedOffsets::new();
            let mut plain = vec![0u64];
            for i in 0..1000u64 {
                let length = if long && i > 300 { 70_000 + i } else { 5 + i * 31 % 4000 };
                assert!(packed.push(length));
                plain.push(plain[i as usize] + length);
            }
            for (i, &offset) in plain.iter().enumerate() {
                assert_eq!(packed.get(i), offset);
            }
        }
    }
}
