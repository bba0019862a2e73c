//! Writes a file once, from start to end, bypassing the page cache.
//!
//! Bytes are collected in aligned buffers, and some of these are written in the background
//! ([`WriteBuffers`]). Space is reserved ahead. `finish` pads the tail, truncates the file to its
//! true length and makes it durable. A writer that is dropped leaves a file with unspecified
//! contents: the caller removes it.

use super::IoClass;
use super::buffer::{ALIGN, AlignedBuf};
use super::file::{File, OpenOptions, open};
use crate::task::{self, Task};
use std::collections::VecDeque;
use std::io;
use std::path::Path;

/// The memory of a writer: `behind + 1` buffers of `bytes` each.
#[derive(Clone, Copy, Debug)]
pub struct WriteBuffers {
    /// Size of one write, in bytes.
    pub bytes: usize,
    /// Concurrent writes.
    pub behind: usize,
}

impl Default for WriteBuffers {
    fn default() -> Self {
        WriteBuffers { bytes: 256 << 10, behind: 2 }
    }
}

/// Space is reserved in steps of this many bytes.
const RESERVE: u64 = 8 << 20;

/// A sequential writer; see the module.
pub struct SequentialWriter {
    file: File,
    class: IoClass,
    buffers: WriteBuffers,
    buffer: AlignedBuf,
    /// The position of `buffer` in the file.
    flushed: u64,
    reserved: u64,
    in_flight: VecDeque<Task<io::Result<AlignedBuf>>>,
    spare: Vec<AlignedBuf>,
}

impl SequentialWriter {
    /// Creates the file at `path`, which must not exist, and a writer at its start.
    pub async fn create(path: &Path, class: IoClass) -> io::Result<Self> {
        Self::create_with(path, class, WriteBuffers::default()).await
    }

    /// Like [`SequentialWriter::create`], with other buffers.
    pub async fn create_with(path: &Path, class: IoClass, buffers: WriteBuffers) -> io::Result<Self> {
        let file = open(path, &OpenOptions { direct: true, ..OpenOptions::create_new() }).await?;
        Ok(Self {
            file,
            class,
            buffers,
            buffer: AlignedBuf::with_capacity(buffers.bytes),
            flushed: 0,
            reserved: 0,
            in_flight: VecDeque::new(),
            spare: Vec::new(),
        })
    }

    /// Bytes appended so far.
    pub fn position(&self) -> u64 {
        self.flushed + self.buffer.len() as u64
    }

    /// Appends `data`. Waits only if too many writes are in progress. After an error the file is
    /// unusable.
    pub async fn append(&mut self, mut data: &[u8]) -> io::Result<()> {
        loop {
            let n = self.buffer.fill_from(data);
            data = &data[n..];
            if data.is_empty() {
                return Ok(());
            }
            self.write_buffer().await?;
        }
    }

    async fn write_buffer(&mut self) -> io::Result<()> {
        debug_assert!(self.buffer.len().is_multiple_of(ALIGN), "only the last write may be padded");
        debug_assert!(self.flushed.is_multiple_of(ALIGN as u64), "direct writes begin at a block of the disk");
        while self.in_flight.len() >= self.buffers.behind {
            self.wait_for_one().await?;
        }
        let end = self.flushed + self.buffer.len() as u64;
        if end > self.reserved {
            self.reserved = end + RESERVE;
            self.file.allocate(self.reserved).await?;
        }
        let next = match self.spare.pop() {
            Some(mut spare) => {
                spare.clear();
                spare
            }
            None => AlignedBuf::with_capacity(self.buffers.bytes),
        };
        let full = std::mem::replace(&mut self.buffer, next);
        let (file, class, at) = (self.file.clone(), self.class, self.flushed);
        self.flushed = end;
        self.in_flight.push_back(task::spawn(async move { file.write_aligned(at, full, class).await }));
        Ok(())
    }

    async fn wait_for_one(&mut self) -> io::Result<()> {
        let Some(write) = self.in_flight.pop_front() else { return Ok(()) };
        let buffer = write.await.map_err(|aborted| io::Error::other(aborted.to_string()))??;
        self.spare.push(buffer);
        Ok(())
    }

    /// Writes the rest, sets the true length, and waits until the contents are durable (not the
    /// name: see `sync_dir`). Returns the length and the open file.
    pub async fn finish(mut self) -> io::Result<(u64, File)> {
        let len = self.position();
        let padded = !self.buffer.len().is_multiple_of(ALIGN);
        self.buffer.pad_to(ALIGN);
        if self.buffer.len() > 0 {
            let (file, class) = (self.file.clone(), self.class);
            let tail = std::mem::replace(&mut self.buffer, AlignedBuf::with_capacity(1));
            file.write_aligned(self.flushed, tail, class).await?;
        }
        while !self.in_flight.is_empty() {
            self.wait_for_one().await?;
        }
        if padded || self.reserved > len {
            self.file.set_len(len).await?;
        }
        self.file.sync_all().await?;
        Ok((len, self.file))
    }
}
