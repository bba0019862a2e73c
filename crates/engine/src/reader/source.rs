//! A source of a reader: one memtable or one sstable.

use super::filling::Filling;
use crate::error::ReadError;
use crate::memtable::MemtableSource;
use crate::table::Attached;
use model::fragment::Fragment;
use model::merge::Rest;
use std::collections::VecDeque;
use std::rc::Rc;

/// Not boxed: a read of one key from one source allocates nothing.
#[allow(clippy::large_enum_variant)]
pub(super) enum Source {
    Memtable(MemtableSource),
    Sstable(Box<SstableSource>),
    Filling(Box<Filling>),
}

pub(super) struct SstableSource {
    pub reader: sstable::Reader,
    pub of: Rc<Attached>,
}

impl Source {
    pub async fn fill(&mut self, out: &mut VecDeque<Fragment>, limit: usize) -> Result<bool, ReadError> {
        match self {
            Source::Memtable(source) => Ok(source.fill(out, limit)),
            // Boxed: a file reader is large, and every request's future would have room for it.
            Source::Sstable(source) => Box::pin(source.fill(out)).await,
            Source::Filling(source) => Box::pin(source.fill(out)).await.map(|()| false),
        }
    }

    pub fn skip_partition(&mut self) {
        match self {
            Source::Memtable(source) => source.skip_partition(),
            Source::Sstable(source) => source.reader.skip_partition(),
            // It yields one partition entirely.
            Source::Filling(_) => {}
        }
    }
}

impl SstableSource {
    pub async fn fill(&mut self, out: &mut VecDeque<Fragment>) -> Result<bool, ReadError> {
        match self.reader.fill(out).await {
            Ok(more) => Ok(more),
            Err(error) => {
                self.of.note_error(&error);
                Err(error.into())
            }
        }
    }
}

/// The sources of a reader while they are collected, each with the part that was already read.
/// The first one needs no list.
#[derive(Default)]
pub(super) struct Sources {
    pub first: Option<(Source, Rest)>,
    pub others: Vec<(Source, Rest)>,
}

impl Sources {
    pub fn push(&mut self, source: Source) {
        self.push_begun(source, Rest::default());
    }

    pub fn push_begun(&mut self, source: Source, rest: Rest) {
        if self.first.is_none() {
            self.first = Some((source, rest));
        } else {
            self.others.push((source, rest));
        }
    }
}
