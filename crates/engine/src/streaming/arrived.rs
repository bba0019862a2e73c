//! The sstables that have arrived from one source, durable and in a directory of their own.

use super::layout::{StreamLayout, StreamedFile};
use sstable::SstablePath;
use std::path::PathBuf;

/// All sstables of a source.
pub struct ArrivedSource {
    /// The directory that has them.
    pub(super) dir: PathBuf,
    /// Their files.
    pub(super) layout: StreamLayout,
}

/// An sstable that has arrived.
pub(super) struct Arrived<'a> {
    pub place: SstablePath,
    pub files: &'a [StreamedFile],
}

impl ArrivedSource {
    pub(super) fn sstables(&self) -> impl Iterator<Item = Arrived<'_>> {
        self.layout.generations().iter().enumerate().map(|(index, generation)| Arrived {
            place: SstablePath::new(&self.dir, *generation),
            files: &self.layout.files()[self.layout.files_of(index)],
        })
    }
}

impl Arrived<'_> {
    /// The bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.len).sum()
    }
}
