//! Checksums that `me` itself lacks: the extra component Checksums.db, which other tools ignore.
//!
//! `me` protects only Data.db (a CRC32 per chunk, and the digest). Checksums.db protects all other
//! components, so that a flipped bit is detected before the data is used. All numbers are
//! big-endian, CRC32 is zlib's:
//!
//! ```text
//! be32 magic "MSCK"
//! be32 version 1
//! be64 length of Data.db as stored
//! be32 page size (4096)
//! be64 length of Index.db
//! be32 CRC32 of each page of Index.db, the last one shorter
//! be32 number of other components
//!   u8 length, name ("Summary.db", ..., including TOC.txt),
//!   be64 length of the file, be32 CRC32 of the file
//! be32 CRC32 of everything before
//! ```
//!
//! The checksums of the chunks in a compressed Data.db are in Data.db itself: they hold in the
//! Data.db of another sstable, too. Three entries of the list bind Data.db to its sstable:
//!
//! ```text
//! "Data.db first chunk": the stored length of the first chunk, and its checksum as stored
//! "Data.db last chunk":  the same of the last chunk
//! "Data.db content":     the length and the CRC32 of the content before compression
//! ```
//!
//! Release 0.1.0 wrote sstables without these entries, and ignores them when it reads. An
//! uncompressed Data.db has none: CRC.db, which is in the list, has the checksums of its chunks.
//!
//! The small components, the lengths, and the checksums of the first and of the last chunk are
//! checked when the sstable is opened; index pages each time they come from disk. The content is
//! checked by readers that read all of it in sequence to write it again, and by a verification.

use crate::error::Error;
use crate::generation::Component;
use crate::input::{Fault, Input, Parsed};
use rt::fs::{IoClass, OpenOptions};
use std::path::Path;

/// Bytes of Index.db per checksum.
pub(crate) const PAGE: usize = 4096;
const MAGIC: &[u8; 4] = b"MSCK";
const VERSION: u32 = 1;
/// Bytes of Data.db per checksum in CRC.db.
pub(crate) const CRC_CHUNK: usize = 65536;

/// The contents of Checksums.db.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Checksums {
    pub data_length: u64,
    pub index_length: u64,
    pub index_pages: Vec<u32>,
    /// (name, length, CRC32).
    pub files: Vec<(String, u64, u32)>,
    /// `None` if Data.db is not compressed, or if an older release wrote the sstable.
    pub data: Option<DataSums>,
}

/// Checksums that bind a compressed Data.db to its sstable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataSums {
    pub first: ChunkSum,
    pub last: ChunkSum,
    pub content: u32,
    pub content_length: u64,
}

/// A chunk of a compressed Data.db.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChunkSum {
    /// The stored length, which includes the checksum.
    pub length: u64,
    /// The checksum, which is at the end of the chunk.
    pub sum: u32,
}

/// The names of [`DataSums`] in the list of components.
const FIRST_CHUNK: &str = "Data.db first chunk";
const LAST_CHUNK: &str = "Data.db last chunk";
const CONTENT: &str = "Data.db content";

impl DataSums {
    /// Takes the entries out of a list of components.
    fn take(files: &mut Vec<(String, u64, u32)>) -> Parsed<Option<Self>> {
        let mut take = |name: &str| {
            let at = files.iter().position(|(known, _, _)| known == name)?;
            let (_, length, sum) = files.remove(at);
            Some(ChunkSum { length, sum })
        };
        match (take(FIRST_CHUNK), take(LAST_CHUNK), take(CONTENT)) {
            (Some(first), Some(last), Some(content)) => {
                Ok(Some(DataSums { first, last, content: content.sum, content_length: content.length }))
            }
            (None, None, None) => Ok(None),
            _ => Err(Fault::Bad("some checksums of Data.db are missing")),
        }
    }

    /// Checks that a compressed Data.db is the one that was written with this Checksums.db. The
    /// bytes of its chunks are checked when they are read.
    pub async fn check(&self, path: &Path, length: u64, content_length: u64) -> Result<(), Error> {
        if self.content_length != content_length {
            return Err(Error::corrupt(path, 0, "the length of the content differs from Checksums.db"));
        }
        // It is closed again: most sstables are not read soon, and descriptors are scarce.
        let file = rt::fs::open(path, &OpenOptions::read()).await.map_err(Error::io(path))?;
        for (end, sum) in [(self.first.length, self.first.sum), (length, self.last.sum)] {
            let at = end.saturating_sub(4);
            let found = file.read_at(at, 4, IoClass::Foreground).await.map_err(Error::io(path))?;
            if found[..] != sum.to_be_bytes() {
                let why = "the checksum of a chunk differs from Checksums.db: \
                           the file is damaged, or is that of another sstable";
                return Err(Error::corrupt(path, at, why));
            }
            if self.first.length == length {
                break;
            }
        }
        Ok(())
    }

    fn entries(&self) -> [(&'static str, u64, u32); 3] {
        [
            (FIRST_CHUNK, self.first.length, self.first.sum),
            (LAST_CHUNK, self.last.length, self.last.sum),
            (CONTENT, self.content_length, self.content),
        ]
    }
}

impl Checksums {
    pub fn read(bytes: &[u8]) -> Parsed<Self> {
        let (body, sum) = bytes.split_last_chunk::<4>().ok_or(Fault::Short)?;
        let mut input = Input(body);
        if input.take(4)? != MAGIC {
            return Err(Fault::Bad("the file is not a Checksums.db"));
        }
        if crc32fast::hash(body) != u32::from_be_bytes(*sum) {
            return Err(Fault::Bad("the checksum of Checksums.db itself is wrong"));
        }
        if input.be32()? != VERSION {
            return Err(Fault::Bad("the version of Checksums.db is not known"));
        }
        let data_length = input.be64()?;
        if input.be32()? as usize != PAGE {
            return Err(Fault::Bad("the page size in Checksums.db is not valid"));
        }
        let index_length = input.be64()?;
        let pages = index_length.div_ceil(PAGE as u64);
        let sums = usize::try_from(pages).ok().and_then(|n| n.checked_mul(4)).ok_or(Fault::Short)?;
        let (sums, _) = input.take(sums)?.as_chunks::<4>();
        let index_pages = sums.iter().map(|sum| u32::from_be_bytes(*sum)).collect();
        let mut files = Vec::new();
        for _ in 0..input.be32()? {
            let len = input.u8()? as usize;
            let name =
                std::str::from_utf8(input.take(len)?).map_err(|_| Fault::Bad("a component name is not UTF-8"))?;
            files.push((name.to_string(), input.be64()?, input.be32()?));
        }
        if !input.0.is_empty() {
            return Err(Fault::Bad("bytes follow the checksums"));
        }
        let data = DataSums::take(&mut files)?;
        Ok(Checksums { data_length, index_length, index_pages, files, data })
    }

    pub fn write(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128 + 4 * self.index_pages.len());
        let pages = self.index_length.div_ceil(PAGE as u64);
        debug_assert_eq!(self.index_pages.len() as u64, pages, "each page of the index has a checksum");
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_be_bytes());
        out.extend_from_slice(&self.data_length.to_be_bytes());
        out.extend_from_slice(&(PAGE as u32).to_be_bytes());
        out.extend_from_slice(&self.index_length.to_be_bytes());
        for sum in &self.index_pages {
            out.extend_from_slice(&sum.to_be_bytes());
        }
        let data = self.data.as_ref().map(DataSums::entries);
        let files = self.files.iter().map(|(name, length, sum)| (name.as_str(), *length, *sum));
        let entries: Vec<_> = files.chain(data.into_iter().flatten()).collect();
        out.extend_from_slice(&(entries.len() as u32).to_be_bytes());
        for (name, length, sum) in entries {
            out.push(name.len() as u8);
            out.extend_from_slice(name.as_bytes());
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(&sum.to_be_bytes());
        }
        let sum = crc32fast::hash(&out);
        out.extend_from_slice(&sum.to_be_bytes());
        out
    }

    /// The entry of a component with these bytes.
    pub fn entry(component: Component, bytes: &[u8]) -> (String, u64, u32) {
        (component.name().to_string(), bytes.len() as u64, crc32fast::hash(bytes))
    }

    /// Replaces the entry of a component by the checksum of these bytes.
    pub fn set(&mut self, component: Component, bytes: &[u8]) {
        let entry = Self::entry(component, bytes);
        match self.files.iter_mut().find(|(name, _, _)| *name == entry.0) {
            Some(known) => *known = entry,
            None => self.files.push(entry),
        }
    }

    /// The length of a component that is listed, in bytes.
    pub fn length(&self, component: Component) -> Option<u64> {
        self.listed(component).map(|(_, length, _)| *length)
    }

    /// The CRC32 of a component that is listed.
    pub fn sum(&self, component: Component) -> Option<u32> {
        self.listed(component).map(|(_, _, sum)| *sum)
    }

    fn listed(&self, component: Component) -> Option<&(String, u64, u32)> {
        self.files.iter().find(|(name, _, _)| name == component.name())
    }

    /// Checks the bytes of a component. A component that is not listed is an error.
    pub fn check(&self, component: Component, bytes: &[u8]) -> Parsed<()> {
        match self.listed(component) {
            None => Err(Fault::Bad("Checksums.db does not list the component")),
            Some(&(_, length, _)) if length != bytes.len() as u64 => {
                Err(Fault::Bad("the length differs from Checksums.db"))
            }
            Some(&(_, _, sum)) if sum != crc32fast::hash(bytes) => {
                Err(Fault::Bad("the checksum differs from Checksums.db"))
            }
            Some(_) => Ok(()),
        }
    }
}

/// Computes checksums of a file, piece by piece, while it is written.
#[derive(Debug)]
pub(crate) struct PieceSums {
    piece: usize,
    filled: usize,
    hasher: crc32fast::Hasher,
    sums: Vec<u32>,
}

impl PieceSums {
    /// One checksum for each `piece` bytes.
    pub fn new(piece: usize) -> Self {
        PieceSums { piece, filled: 0, hasher: crc32fast::Hasher::new(), sums: Vec::new() }
    }

    pub fn update(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let n = bytes.len().min(self.piece - self.filled);
            self.hasher.update(&bytes[..n]);
            self.filled += n;
            bytes = &bytes[n..];
            if self.filled == self.piece {
                self.close();
            }
        }
    }

    fn close(&mut self) {
        let hasher = std::mem::replace(&mut self.hasher, crc32fast::Hasher::new());
        self.sums.push(hasher.finalize());
        self.filled = 0;
    }

    pub fn finish(mut self) -> Vec<u32> {
        if self.filled > 0 {
            self.close();
        }
        self.sums
    }
}

/// CRC.db: the chunk size (be32), then a CRC32 for each chunk of an uncompressed Data.db.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CrcFile {
    pub chunk: usize,
    pub sums: Vec<u32>,
}

impl CrcFile {
    pub fn read(bytes: &[u8], data_length: u64) -> Parsed<Self> {
        let mut input = Input(bytes);
        let chunk = input.be32()? as usize;
        if !(512..=16 << 20).contains(&chunk) {
            return Err(Fault::Bad("the chunk size is not valid"));
        }
        let (sums, rest) = input.0.as_chunks::<4>();
        let sums: Vec<u32> = sums.iter().map(|sum| u32::from_be_bytes(*sum)).collect();
        let wanted = data_length.div_ceil(chunk as u64);
        // Older files have one more entry at the end.
        if !rest.is_empty() || (sums.len() as u64 != wanted && sums.len() as u64 != wanted + 1) {
            return Err(Fault::Bad("the number of checksums does not match the length of Data.db"));
        }
        Ok(CrcFile { chunk, sums })
    }

    pub fn write(&self) -> Vec<u8> {
        let mut out = (self.chunk as u32).to_be_bytes().to_vec();
        out.extend(self.sums.iter().flat_map(|sum| sum.to_be_bytes()));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_round_trip_and_detect_every_flipped_bit() {
        let mut pages = PieceSums::new(PAGE);
        let index = vec![7u8; PAGE * 2 + 5];
        for piece in index.chunks(1000) {
            pages.update(piece);
        }
        let index_pages = pages.finish();
        assert_eq!(index_pages, index.chunks(PAGE).map(crc32fast::hash).collect::<Vec<_>>());
        let files = vec![("TOC.txt".to_string(), 3, crc32fast::hash(b"abc"))];
        let chunk = |length, sum| ChunkSum { length, sum };
        let data = DataSums { first: chunk(50, 1), last: chunk(49, 2), content: 3, content_length: 200 };
        let index_length = index.len() as u64;
        let checksums = Checksums { data_length: 99, index_length, index_pages, files, data: Some(data) };
        let without = Checksums { data: None, ..checksums.clone() };
        assert_eq!(Checksums::read(&without.write()), Ok(without), "as release 0.1.0 wrote it");
        let bytes = checksums.write();
        assert_eq!(Checksums::read(&bytes), Ok(checksums.clone()));
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Checksums::read(&damaged).is_err(), "bit {bit}");
        }
        assert_eq!(checksums.check(Component::Toc, b"abc"), Ok(()));
        assert!(checksums.check(Component::Toc, b"abd").is_err());
        assert!(checksums.check(Component::Filter, b"").is_err());
    }
}
