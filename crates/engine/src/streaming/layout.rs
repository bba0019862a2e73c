//! The files of a streamed tablet as one sequence of bytes. Pure.

use crate::error::EngineError;
use serde::{Deserialize, Serialize};
use sstable::{Component, Generation, arrival_order};
use std::collections::BTreeSet;
use std::ops::Range;

/// Files of at most this many bytes are read and written at once, through the page cache.
pub(super) const SMALL_FILE: u64 = 256 << 10;

/// An sstable as its source describes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StreamedSstable {
    /// Its generation.
    pub generation: String,
    /// The names of its components with their lengths in bytes, in the order of
    /// [`sstable::arrival_order`].
    pub files: Vec<(String, u64)>,
}

impl StreamedSstable {
    /// An sstable with these components and their lengths, in the order of arrival.
    pub(super) fn new(generation: Generation, files: Vec<(Component, u64)>) -> StreamedSstable {
        let files = files.into_iter().map(|(component, len)| (component.name().to_owned(), len)).collect();
        StreamedSstable { generation: generation.to_string(), files }
    }
}

/// A part of one file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The index of the file in [`StreamLayout::files`].
    pub file: usize,
    /// Where it begins in the file.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// A file of the sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamedFile {
    /// The index of its sstable in [`StreamLayout::generations`].
    pub sstable: usize,
    /// Which file of the sstable it is.
    pub component: Component,
    /// Its length in bytes.
    pub len: u64,
    /// Where it begins in the sequence.
    pub start: u64,
}

impl StreamedFile {
    /// Where it ends in the sequence.
    pub fn end(&self) -> u64 {
        self.start + self.len
    }
}

/// The order of all files; see the module.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StreamLayout {
    generations: Vec<Generation>,
    files: Vec<StreamedFile>,
    /// For each sstable, its files.
    of_sstable: Vec<Range<usize>>,
    total: u64,
}

impl StreamLayout {
    /// The layout of these sstables.
    ///
    /// # Errors
    ///
    /// [`EngineError::Layout`] if the description is invalid.
    pub fn new(sstables: &[StreamedSstable]) -> Result<StreamLayout, EngineError> {
        let mut layout = StreamLayout::default();
        let mut known = BTreeSet::new();
        for sstable in sstables {
            let generation = &sstable.generation;
            let parsed: Generation =
                generation.parse().map_err(|_| EngineError::Layout(format!("{generation:?} is no generation")))?;
            if !known.insert(parsed) {
                return Err(EngineError::Layout(format!("{generation} is listed twice")));
            }
            let (index, begin) = (layout.generations.len(), layout.files.len());
            layout.generations.push(parsed);
            for (name, len) in &sstable.files {
                let component = Component::named(name).filter(|component| *component != Component::TemporaryToc);
                let component = component.ok_or_else(|| EngineError::Layout(format!("{name:?} is no component")))?;
                let before = layout.files[begin..].last();
                if before.is_some_and(|before| arrival_order(before.component) >= arrival_order(component)) {
                    return Err(EngineError::Layout(format!(
                        "{name} of {generation} is not in the order in which components are streamed"
                    )));
                }
                layout.files.push(StreamedFile { sstable: index, component, len: *len, start: layout.total });
                let total = layout.total.checked_add(*len);
                layout.total =
                    total.ok_or_else(|| EngineError::Layout("the files are too long together".to_owned()))?;
            }
            let has = |component| layout.files[begin..].iter().any(|file| file.component == component);
            if let Some(lacks) = REQUIRED.into_iter().find(|component| !has(*component)) {
                return Err(EngineError::Layout(format!("{} of {generation} is missing", lacks.name())));
            }
            layout.of_sstable.push(begin..layout.files.len());
        }
        Ok(layout)
    }

    /// The number of bytes of all files.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The sstables.
    pub fn generations(&self) -> &[Generation] {
        &self.generations
    }

    /// All files in order.
    pub fn files(&self) -> &[StreamedFile] {
        &self.files
    }

    /// The files of an sstable: indexes in [`StreamLayout::files`].
    pub fn files_of(&self, sstable: usize) -> Range<usize> {
        self.of_sstable[sstable].clone()
    }

    /// The bytes of an sstable: its place in the sequence.
    pub fn bytes_of(&self, sstable: usize) -> Range<u64> {
        let files = &self.files[self.files_of(sstable)];
        match (files.first(), files.last()) {
            (Some(first), Some(last)) => first.start..last.end(),
            _ => self.total..self.total,
        }
    }

    /// The parts of files in a range of the sequence, in order. Empty files have no part.
    pub fn spans(&self, range: Range<u64>) -> impl Iterator<Item = Span> + '_ {
        let first = self.files.partition_point(|file| file.end() <= range.start);
        let files = self.files[first..].iter().enumerate().take_while({
            let end = range.end;
            move |(_, file)| file.start < end
        });
        files.filter(|(_, file)| file.len > 0).map(move |(at, file)| {
            let (start, end) = (range.start.max(file.start), range.end.min(file.end()));
            Span { file: first + at, offset: start - file.start, len: end - start }
        })
    }
}

/// The components without which an arriving sstable cannot be checked or read.
const REQUIRED: [Component; 6] =
    [Component::Toc, Component::Checksums, Component::Digest, Component::Data, Component::Index, Component::Statistics];

#[cfg(test)]
mod tests {
    use super::*;

    fn sstable(generation: &str, data: u64) -> StreamedSstable {
        let lengths = [("TOC.txt", 3), ("Checksums.db", 4), ("Digest.crc32", 2), ("Data.db", data), ("Index.db", 0)];
        let files = lengths.into_iter().chain([("Statistics.db", 1)]);
        let files = files.map(|(name, len)| (name.to_owned(), len)).collect();
        StreamedSstable { generation: generation.to_owned(), files }
    }

    #[test]
    fn the_sequence_is_cut_into_parts_of_files() {
        let layout = StreamLayout::new(&[sstable("1", 10), sstable("2", 20)]).expect("a layout");
        assert_eq!((layout.total(), layout.bytes_of(0), layout.bytes_of(1)), (50, 0..20, 20..50));
        let whole: Vec<Span> = layout.spans(0..50).collect();
        assert_eq!(whole.len(), 10, "the empty files are left out");
        for cut in 0..=50 {
            let mut next = 0;
            for span in layout.spans(0..cut).chain(layout.spans(cut..50)) {
                let file = layout.files()[span.file];
                assert_eq!(file.start + span.offset, next, "cut at {cut}");
                assert!(span.len > 0 && span.offset + span.len <= file.len);
                next += span.len;
            }
            assert_eq!(next, 50);
        }
        assert_eq!(
            layout.spans(5..8).collect::<Vec<_>>(),
            [Span { file: 1, offset: 2, len: 2 }, Span { file: 2, offset: 0, len: 1 }]
        );
    }

    #[test]
    fn invalid_descriptions_are_refused() {
        type Change = fn(&mut StreamedSstable);
        let broken = |change: Change| {
            let mut one = sstable("1", 10);
            change(&mut one);
            StreamLayout::new(&[one, sstable("2", 1)]).map_err(|error| error.to_string())
        };
        assert!(broken(|_| ()).is_ok());
        let cases: [(Change, &str); 7] = [
            (|one| one.generation = "../1".into(), "no generation"),
            (|one| one.generation = "2".into(), "twice"),
            (|one| one.files[3].0 = "../Data.db".into(), "no component"),
            (|one| one.files[3].0 = "TOC.txt.tmp".into(), "no component"),
            (|one| one.files.swap(0, 1), "not in the order"),
            (|one| drop(one.files.pop()), "missing"),
            (|one| one.files[3].1 = u64::MAX, "too long"),
        ];
        for (change, expected) in cases {
            let why = broken(change).expect_err(expected);
            assert!(why.contains(expected), "{why}");
        }
        assert_eq!(StreamLayout::new(&[]).expect("a layout").total(), 0);
    }
}
