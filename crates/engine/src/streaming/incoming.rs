//! The receiver of a streamed tablet: writes the files of a session, and checks every byte.
//!
//! The bytes arrive in order. Small files are collected and written at once, several sstables at a
//! time. Large files are written while they arrive. When all other files of an sstable are durable,
//! its TOC.txt is written: so an sstable with a TOC.txt is complete, even after a crash. A later
//! attempt does not ask for it again ([`Incoming::missing`]).

use super::arrived::ArrivedSource;
use super::attach::StreamTarget;
use super::layout::{SMALL_FILE, StreamLayout, StreamedFile, StreamedSstable};
use super::session_dir;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::table::Table;
use crate::table_dir::names_in;
use bytes::{Bytes, BytesMut};
use futures_util::future::{LocalBoxFuture, try_join_all};
use model::HostId;
use rt::fs::{IoClass, OpenOptions, SequentialWriter, WriteBuffers};
use rt::task::Task;
use sstable::{Arrival, Component, FileCheck, SstablePath};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The most bytes of small files that may wait to be durable.
const MOST_UNWRITTEN: u64 = 16 << 20;
/// The most sstables that may wait to be durable.
const MOST_UNSEALED: usize = 64;
/// The disk is kept busy while bytes arrive.
const LARGE_FILE: WriteBuffers = WriteBuffers { bytes: 512 << 10, behind: 4 };
/// Bytes after which all that has arrived is made durable, so that the source can release it.
const CHECKPOINT: u64 = 256 << 20;

/// An attempt to receive the files of a session. Sstables that have arrived become durable also if
/// it is dropped. The next attempt waits for that.
pub struct Incoming {
    table: Rc<Table>,
    dir: PathBuf,
    layout: StreamLayout,
    /// For each sstable, whether it is complete and durable, or on its way there.
    arrived: Vec<bool>,
    /// The file whose bytes come next.
    next: usize,
    sstable: Option<Arriving>,
    sealing: VecDeque<Sealing>,
    /// Bytes of small files in `sealing`.
    unwritten: u64,
    /// See [`Incoming::durable_before`].
    durable: u64,
}

/// The sstable whose files are arriving.
struct Arriving {
    arrival: Arrival,
    file: Option<ArrivingFile>,
    toc: Bytes,
    /// Makes the files durable that have arrived.
    writes: Vec<LocalBoxFuture<'static, Result<(), EngineError>>>,
    unwritten: u64,
}

struct ArrivingFile {
    check: FileCheck,
    left: u64,
    content: Content,
}

enum Content {
    Small(BytesMut),
    Large(Box<SequentialWriter>),
}

/// An sstable that has arrived and is being made durable.
struct Sealing {
    task: Task<Result<(), EngineError>>,
    unwritten: u64,
}

impl Engine {
    /// Begins to receive the sstables of a source, or continues an earlier attempt.
    ///
    /// # Errors
    ///
    /// [`EngineError::Io`] with `StorageFull` if the disk has no room for what is missing.
    pub async fn receive(
        &self,
        target: StreamTarget,
        source: HostId,
        sstables: &[StreamedSstable],
    ) -> Result<Incoming, EngineError> {
        let layout = StreamLayout::new(sstables)?;
        let table = self.table_or_error(target.table)?;
        self.make_directory(&table).await?;
        table.arriving.earlier_have_left().await;
        let dir = session_dir::from_source(&table.dir, target.session, target.epoch, source);
        session_dir::make(&table.dir, &dir).await?;
        let mut names: BTreeSet<String> = names_in(&dir).await?.into_iter().collect();
        let mut arrived = vec![false; layout.generations().len()];
        for (index, has_arrived) in arrived.iter_mut().enumerate() {
            let place = SstablePath::new(&dir, layout.generations()[index]);
            let files = &layout.files()[layout.files_of(index)];
            let own: Vec<String> = files.iter().map(|file| place.file_name(file.component.name())).collect();
            // TOC.txt is written last. A power loss may keep it and lose the name of another.
            if own.iter().all(|name| names.contains(name)) {
                *has_arrived = true;
                own.iter().for_each(|name| drop(names.take(name)));
            }
        }
        for path in names.iter().map(|name| dir.join(name)) {
            rt::fs::remove_file(&path).await.map_err(EngineError::io(&path))?;
        }
        let mut incoming = Incoming {
            table,
            dir,
            layout,
            arrived,
            next: 0,
            sstable: None,
            sealing: VecDeque::new(),
            unwritten: 0,
            durable: 0,
        };
        incoming.skip_arrived();
        incoming.check_room().await?;
        Ok(incoming)
    }
}

impl Incoming {
    /// Whether these are the sstables that this attempt receives.
    pub fn is_of(&self, sstables: &[StreamedSstable]) -> bool {
        StreamLayout::new(sstables).is_ok_and(|layout| layout == self.layout)
    }

    /// All sstables that end before this place are durable.
    pub fn durable_before(&self) -> u64 {
        self.durable
    }

    /// The order of the bytes.
    pub fn layout(&self) -> &StreamLayout {
        &self.layout
    }

    /// Where the next byte is in the sequence. All sstables that end before have arrived.
    pub fn position(&self) -> u64 {
        let Some(file) = self.layout.files().get(self.next) else { return self.layout.total() };
        let left = self.sstable.as_ref().and_then(|sstable| sstable.file.as_ref()).map_or(file.len, |file| file.left);
        file.end() - left
    }

    /// The ranges of the sequence that have not arrived, in order.
    pub fn missing(&self) -> Vec<Range<u64>> {
        let mut missing: Vec<Range<u64>> = Vec::new();
        let from = self.position();
        for (index, arrived) in self.arrived.iter().enumerate() {
            let Range { start, end } = self.layout.bytes_of(index);
            let start = start.max(from);
            match missing.last_mut() {
                _ if *arrived || start >= end => {}
                Some(last) if last.end == start => last.end = end,
                _ => missing.push(start..end),
            }
        }
        missing
    }

    async fn check_room(&self) -> Result<(), EngineError> {
        check_room(&self.dir, self.missing().iter().map(|range| range.end - range.start).sum()).await
    }

    /// Advances over sstables that have arrived.
    fn skip_arrived(&mut self) {
        while let Some(file) = self.layout.files().get(self.next)
            && self.arrived[file.sstable]
        {
            self.next = self.layout.files_of(file.sstable).end;
        }
    }

    /// Takes the bytes at [`Incoming::position`]. After an error this attempt is over; another one
    /// continues with what is durable.
    ///
    /// # Errors
    ///
    /// [`EngineError::Sstable`] if a file is damaged.
    pub async fn push(&mut self, mut bytes: Bytes) -> Result<(), EngineError> {
        while !bytes.is_empty() {
            let Some(&file) = self.layout.files().get(self.next) else {
                return Err(EngineError::Layout("more bytes have arrived than the files have".to_owned()));
            };
            self.begin_file(file).await?;
            let arriving = self.sstable.as_mut().and_then(|sstable| sstable.file.as_mut()).expect("a file has begun");
            let part = bytes.split_to(bytes.len().min(arriving.left as usize));
            arriving.check.update(&part);
            arriving.left -= part.len() as u64;
            match &mut arriving.content {
                Content::Small(content) => content.extend_from_slice(&part),
                Content::Large(writer) => {
                    let path = place_of(&self.dir, &self.layout, file).path(file.component);
                    writer.append(&part).await.map_err(EngineError::io(path))?;
                }
            }
            if arriving.left == 0 {
                self.end_file(file).await?;
                self.end_empty_files().await?;
            }
        }
        Ok(())
    }

    async fn begin_file(&mut self, file: StreamedFile) -> Result<(), EngineError> {
        let place = place_of(&self.dir, &self.layout, file);
        let sstable = self.sstable.get_or_insert_with(|| Arriving {
            arrival: Arrival::new(place.clone()),
            file: None,
            toc: Bytes::new(),
            writes: Vec::new(),
            unwritten: 0,
        });
        if sstable.file.is_some() {
            return Ok(());
        }
        let check = sstable.arrival.begin(file.component, file.len)?;
        let content = match file.len <= SMALL_FILE {
            true => Content::Small(BytesMut::with_capacity(file.len as usize)),
            false => {
                let path = place.path(file.component);
                let writer = SequentialWriter::create_with(&path, IoClass::Background, LARGE_FILE).await;
                Content::Large(Box::new(writer.map_err(EngineError::io(path))?))
            }
        };
        sstable.file = Some(ArrivingFile { check, left: file.len, content });
        Ok(())
    }

    /// Ends the file that is arriving, and its sstable if it is the last one.
    async fn end_file(&mut self, file: StreamedFile) -> Result<(), EngineError> {
        let place = place_of(&self.dir, &self.layout, file);
        let sstable = self.sstable.as_mut().expect("a file has begun");
        let ended = sstable.file.take().expect("a file has begun");
        debug_assert_eq!(ended.left, 0, "a file ends after its last byte");
        sstable.arrival.end(ended.check)?;
        let path = place.path(file.component);
        match ended.content {
            Content::Small(content) if file.component == Component::Toc => sstable.toc = content.freeze(),
            Content::Small(content) => {
                sstable.unwritten += file.len;
                sstable.writes.push(Box::pin(write_small(path, content.freeze())));
            }
            Content::Large(writer) => sstable
                .writes
                .push(Box::pin(async move { writer.finish().await.map(drop).map_err(EngineError::io(path)) })),
        }
        self.next += 1;
        if self.next == self.layout.files_of(file.sstable).end {
            self.seal(file.sstable, place).await?;
        }
        Ok(())
    }

    /// Files without bytes begin and end with the file before them.
    async fn end_empty_files(&mut self) -> Result<(), EngineError> {
        while self.sstable.is_some()
            && let Some(&file) = self.layout.files().get(self.next)
            && file.len == 0
        {
            self.begin_file(file).await?;
            self.end_file(file).await?;
        }
        Ok(())
    }

    /// Makes an sstable durable that has arrived, in the background.
    async fn seal(&mut self, index: usize, place: SstablePath) -> Result<(), EngineError> {
        let Some(Arriving { toc, writes, unwritten, .. }) = self.sstable.take() else { return Ok(()) };
        self.arrived[index] = true;
        self.unwritten += unwritten;
        let writing = self.table.arriving.enter();
        let task = rt::task::spawn(async move {
            let _writing = writing;
            try_join_all(writes).await?;
            write_small(place.path(Component::Toc), toc).await
        });
        self.sealing.push_back(Sealing { task, unwritten });
        self.skip_arrived();
        while self.unwritten > MOST_UNWRITTEN || self.sealing.len() > MOST_UNSEALED {
            self.wait_for_one().await?;
        }
        if self.position() - self.durable >= CHECKPOINT {
            self.make_durable().await?;
        }
        Ok(())
    }

    async fn make_durable(&mut self) -> Result<(), EngineError> {
        while !self.sealing.is_empty() {
            self.wait_for_one().await?;
        }
        rt::fs::sync_dir(&self.dir).await.map_err(EngineError::io(&self.dir))?;
        self.durable = self.position();
        Ok(())
    }

    async fn wait_for_one(&mut self) -> Result<(), EngineError> {
        let Some(Sealing { task, unwritten }) = self.sealing.pop_front() else { return Ok(()) };
        self.unwritten -= unwritten;
        task.await.unwrap_or(Err(EngineError::Cancelled))
    }

    /// Waits until all that has arrived is durable.
    ///
    /// # Errors
    ///
    /// [`EngineError::Layout`] if something is missing.
    pub async fn finish(mut self) -> Result<ArrivedSource, EngineError> {
        self.make_durable().await?;
        match self.position() == self.layout.total() {
            true => Ok(ArrivedSource { dir: self.dir, layout: self.layout }),
            false => {
                let (arrived, total) = (self.position(), self.layout.total());
                Err(EngineError::Layout(format!("{arrived} of {total} bytes have arrived")))
            }
        }
    }
}

/// An error if a disk has no room for `needed` bytes.
pub(super) async fn check_room(dir: &Path, needed: u64) -> Result<(), EngineError> {
    let (_, free) = rt::fs::disk_space(dir).await.map_err(EngineError::io(dir))?;
    if free >= needed {
        return Ok(());
    }
    let why = format!("the tablet needs {} MiB more, and {} MiB are free", needed.div_ceil(1 << 20), free >> 20);
    Err(EngineError::io(dir)(std::io::Error::new(std::io::ErrorKind::StorageFull, why)))
}

fn place_of(dir: &Path, layout: &StreamLayout, file: StreamedFile) -> SstablePath {
    SstablePath::new(dir, layout.generations()[file.sstable])
}

/// Creates a file with these bytes, durably. The directory is synced later.
async fn write_small(path: PathBuf, bytes: Bytes) -> Result<(), EngineError> {
    let written = async {
        let file = rt::fs::open(&path, &OpenOptions::create_new()).await?;
        file.write_at(0, bytes, IoClass::Background).await?;
        file.sync_data().await
    };
    written.await.map_err(EngineError::io(&path))
}
