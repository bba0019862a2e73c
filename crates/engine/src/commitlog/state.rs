//! The state that changes with each append: the active segment, the current batch, the progress
//! of the tasks.

use super::error::LogError;
use super::format::{Kind, push_record};
use super::ledger::Ledger;
use super::log::Entry;
use super::mapping::ColumnMapping;
use super::position::Position;
use model::{SchemaVersion, TableId};
use rt::fs::File;
use rt::hash::HashSet;
use std::rc::Rc;

/// See the module.
pub(super) struct State {
    /// The segment that is written to.
    pub active: Rc<Segment>,
    /// Where the next record goes.
    pub offset: u32,
    /// The schema versions whose mappings the active segment has.
    pub mapped: HashSet<(TableId, SchemaVersion)>,
    pub last_mapped: Option<(TableId, SchemaVersion)>,
    /// The bytes of the active segment from `chunk_start` to `offset` that the writer does not
    /// have yet.
    pub chunk: Vec<u8>,
    pub chunk_start: u32,
    /// Other chunks for the writer: the ends of earlier segments.
    pub queue: Vec<Chunk>,
    /// The first position of the batch that is being filled.
    pub batch_start: Position,
    /// The segment after the active one, ready for use.
    pub next: Option<Rc<Segment>>,
    /// Bytes appended and not yet in the kernel.
    pub buffered: usize,
    /// All below is in the kernel.
    pub written: Position,
    /// All below is on the device.
    pub synced: Position,
    /// Files written to since they were last synced.
    pub unsynced: Vec<Rc<Segment>>,
    pub ledger: Ledger,
    pub failed: Option<LogError>,
    /// A batch could not be written for lack of space.
    pub no_space_to_write: bool,
    /// No segment could be made for lack of space.
    pub no_space_for_segment: bool,
    /// Memtables cannot be flushed for lack of space, so no segment becomes free.
    pub flushes_blocked: bool,
    pub closing: bool,
    /// The writer waits for `Signals::write`.
    pub writer_idle: bool,
}

/// An open segment file.
pub(super) struct Segment {
    pub id: u64,
    /// Its length, in bytes.
    pub size: u32,
    pub file: File,
}

/// Bytes to be written to a segment.
pub(super) struct Chunk {
    pub segment: Rc<Segment>,
    pub start: u32,
    pub bytes: Vec<u8>,
    /// These are the last bytes of that segment.
    pub last: bool,
}

impl State {
    /// Whether records are accepted now.
    pub fn check(&self) -> Result<(), LogError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        if self.closing {
            return Err(LogError::Closed);
        }
        if self.no_space_to_write {
            return Err(LogError::NoSpace);
        }
        Ok(())
    }

    /// The error for a record that the log has no room for.
    pub fn too_long(&self) -> LogError {
        if self.flushes_blocked { LogError::NoSpace } else { LogError::Busy }
    }

    /// The position after the last record.
    pub fn end(&self) -> Position {
        Position { segment: self.active.id, offset: self.offset }
    }

    pub fn push(&mut self, kind: Kind, body: impl FnOnce(&mut Vec<u8>)) -> Position {
        let position = self.end();
        let before = self.chunk.len();
        push_record(&mut self.chunk, position, kind, self.synced, body);
        let len = self.chunk.len() - before;
        self.offset += len as u32;
        self.buffered += len;
        debug_assert!(self.offset <= self.active.size, "a record is inside its segment");
        debug_assert_eq!(
            self.chunk_start as usize + self.chunk.len(),
            self.offset as usize,
            "the writer gets every byte of the segment"
        );
        debug_assert!(self.synced <= self.written && self.written <= self.end(), "records are written, then synced");
        position
    }

    /// Ends the active segment and gives the rest of it to the writer.
    pub fn end_segment(&mut self) {
        self.push(Kind::End, |_| {});
        let bytes = std::mem::take(&mut self.chunk);
        let segment = self.active.clone();
        self.queue.push(Chunk { segment, start: self.chunk_start, bytes, last: true });
        self.chunk_start = self.offset;
    }

    /// The mappings that the active segment lacks for these entries.
    pub fn missing_mappings(&mut self, entries: &[Entry<'_>]) -> Vec<ColumnMapping> {
        let mut missing: Vec<ColumnMapping> = Vec::new();
        for entry in entries {
            let key = (entry.schema.id, entry.schema.version);
            if self.last_mapped == Some(key) || self.mapped.contains(&key) {
                self.last_mapped = Some(key);
            } else if !missing.iter().any(|mapping| (mapping.table, mapping.version) == key) {
                missing.push(ColumnMapping::of(entry.schema));
            }
        }
        missing
    }

    /// The mappings that a new segment needs for these entries.
    pub fn all_mappings(&self, entries: &[Entry<'_>]) -> Vec<ColumnMapping> {
        let mut all: Vec<ColumnMapping> = Vec::new();
        for entry in entries {
            let key = (entry.schema.id, entry.schema.version);
            if !all.iter().any(|mapping| (mapping.table, mapping.version) == key) {
                all.push(ColumnMapping::of(entry.schema));
            }
        }
        all
    }
}
