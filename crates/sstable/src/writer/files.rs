//! The two files that are written while partitions are added: Data.db and Index.db.

use crate::checksums::{CRC_CHUNK, ChunkSum, CrcFile, DataSums, PAGE, PieceSums};
use crate::compression::{Compression, CompressionInfo, PackedOffsets};
use crate::error::Error;
use crate::large_reads::LARGE;
use rt::fs::{IoClass, SequentialWriter};
use std::io;
use std::path::{Path, PathBuf};

/// Bytes of content between two checks of the clock, because a large row has very many chunks.
const YIELD_EVERY: usize = 256 << 10;

/// Data.db: takes content and stores chunks.
pub(crate) struct DataFile {
    out: SequentialWriter,
    path: PathBuf,
    compression: Option<Compression>,
    /// Content that is not stored yet. It begins at `stored`.
    content: Vec<u8>,
    stored: u64,
    chunk: Vec<u8>,
    offsets: PackedOffsets,
    crcs: PieceSums,
    digest: crc32fast::Hasher,
    /// Of a compressed file: the first and the last chunk so far, and the checksum of the content.
    ends: Option<(ChunkSum, ChunkSum)>,
    content_sum: crc32fast::Hasher,
}

/// The result for Data.db.
pub(crate) struct DataDone {
    pub content_length: u64,
    pub stored_length: u64,
    pub digest: u32,
    /// `None` if the file is not compressed.
    pub sums: Option<DataSums>,
    /// The bytes of CompressionInfo.db or CRC.db.
    pub companion: Vec<u8>,
}

impl DataFile {
    pub async fn create(path: &Path, compression: Option<Compression>, class: IoClass) -> Result<Self, Error> {
        Ok(DataFile {
            out: SequentialWriter::create(path, class).await.map_err(Error::io(path))?,
            path: path.to_path_buf(),
            compression,
            content: Vec::new(),
            stored: 0,
            chunk: Vec::new(),
            offsets: PackedOffsets::new(),
            crcs: PieceSums::new(CRC_CHUNK),
            digest: crc32fast::Hasher::new(),
            ends: None,
            content_sum: crc32fast::Hasher::new(),
        })
    }

    /// The position of the next byte of content.
    pub fn position(&self) -> u64 {
        self.stored + self.content.len() as u64
    }

    /// Bytes stored so far.
    pub fn stored(&self) -> u64 {
        self.out.position()
    }

    /// The buffer to append content to. Call [`DataFile::drain`] after each unfiltered.
    pub fn content(&mut self) -> &mut Vec<u8> {
        &mut self.content
    }

    fn chunk_length(&self) -> usize {
        self.compression.map_or(CRC_CHUNK, |compression| compression.chunk_length)
    }

    /// Stores complete chunks.
    #[inline]
    pub async fn drain(&mut self) -> Result<(), Error> {
        if self.content.len() < self.chunk_length() {
            return Ok(());
        }
        self.store(false).await.map_err(|error| Error::io(&self.path)(error))
    }

    async fn store(&mut self, all: bool) -> io::Result<()> {
        let length = self.chunk_length();
        let mut at = 0;
        debug_assert!(self.stored.is_multiple_of(length as u64), "only the last chunk is shorter than others");
        while self.content.len() - at >= length || (all && at < self.content.len()) {
            let piece = at..self.content.len().min(at + length);
            at = piece.end;
            match self.compression {
                None => {
                    let piece = &self.content[piece];
                    self.digest.update(piece);
                    self.crcs.update(piece);
                    self.out.append(piece).await?;
                }
                Some(compression) => {
                    self.chunk.clear();
                    compression.algorithm.compress(&self.content[piece.clone()], &mut self.chunk)?;
                    let sum = crc32fast::hash(&self.chunk);
                    self.chunk.extend_from_slice(&sum.to_be_bytes());
                    self.digest.update(&self.chunk);
                    self.content_sum.update(&self.content[piece]);
                    let last = ChunkSum { length: self.chunk.len() as u64, sum };
                    self.ends = Some((self.ends.map_or(last, |(first, _)| first), last));
                    if !self.offsets.push(self.chunk.len() as u64) {
                        return Err(io::Error::other("a compressed chunk is too long"));
                    }
                    self.out.append(&self.chunk).await?;
                }
            }
            if at.is_multiple_of(YIELD_EVERY) {
                rt::task::maybe_yield().await;
            }
        }
        self.content.drain(..at);
        // The buffer of a large row is not kept for the small rows after it.
        if self.content.capacity() >= LARGE {
            self.content.shrink_to(LARGE / 2);
        }
        self.stored += at as u64;
        Ok(())
    }

    /// Stores the rest and syncs the file.
    pub async fn finish(mut self) -> Result<DataDone, Error> {
        self.store(true).await.map_err(|error| Error::io(&self.path)(error))?;
        let (stored_length, _) = self.out.finish().await.map_err(Error::io(&self.path))?;
        debug_assert!(self.content.is_empty(), "all content is stored");
        debug_assert!(
            self.compression.is_none_or(|compression| {
                let chunks = self.stored.div_ceil(compression.chunk_length as u64);
                self.offsets.len() as u64 == chunks && self.offsets.get(self.offsets.len()) == stored_length
            }),
            "the chunks are the whole file, one after another"
        );
        debug_assert!(self.compression.is_some() || stored_length == self.stored, "plain content is stored as it is");
        let companion = match self.compression {
            None => CrcFile { chunk: CRC_CHUNK, sums: self.crcs.finish() }.write(),
            Some(compression) => CompressionInfo {
                options: Vec::new(),
                algorithm: compression.algorithm,
                chunk_length: compression.chunk_length,
                content_length: self.stored,
                max_compressed: usize::MAX,
                offsets: self.offsets,
            }
            .write(),
        };
        let (content, content_length) = (self.content_sum.finalize(), self.stored);
        let sums = self.ends.map(|(first, last)| DataSums { first, last, content, content_length });
        Ok(DataDone { content_length, stored_length, digest: self.digest.finalize(), sums, companion })
    }
}

/// Index.db.
pub(crate) struct IndexFile {
    out: SequentialWriter,
    path: PathBuf,
    sums: PieceSums,
}

impl IndexFile {
    pub async fn create(path: &Path, class: IoClass) -> Result<Self, Error> {
        let out = SequentialWriter::create(path, class).await.map_err(Error::io(path))?;
        Ok(IndexFile { out, path: path.to_path_buf(), sums: PieceSums::new(PAGE) })
    }

    pub fn position(&self) -> u64 {
        self.out.position()
    }

    pub async fn append(&mut self, entry: &[u8]) -> Result<(), Error> {
        self.sums.update(entry);
        self.out.append(entry).await.map_err(Error::io(&self.path))
    }

    /// Syncs the file. Returns its length and the checksums of its pages.
    pub async fn finish(self) -> Result<(u64, Vec<u32>), Error> {
        let (length, _) = self.out.finish().await.map_err(Error::io(&self.path))?;
        Ok((length, self.sums.finish()))
    }
}
