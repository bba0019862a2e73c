//! The files of hints for one node: one that grows, and those that wait for replay.

use super::format;
use model::id::HostId;
use rt::fs::{File, IoClass, OpenOptions};
use rt::sync::Semaphore;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The ending of the files' names.
const ENDING: &str = ".hints";

/// A file that waits for replay.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    pub path: PathBuf,
    bytes: u64,
    /// Up to where it was delivered since the node started.
    pub delivered: usize,
}

struct Growing {
    file: File,
    path: PathBuf,
    len: u64,
    /// What was written and not synced.
    is_dirty: bool,
}

pub(super) struct Pile {
    pub target: HostId,
    directory: PathBuf,
    waiting: RefCell<VecDeque<Waiting>>,
    growing: RefCell<Option<Growing>>,
    /// Records that nobody has begun to write, and how many were ever put here.
    queue: RefCell<Vec<u8>>,
    queued: Cell<u64>,
    /// How many were written, or failed to be.
    written: Cell<u64>,
    /// The first of those written last, if they failed to be.
    failed_from: Cell<Option<u64>>,
    /// Who writes for all that are queued.
    turn: Semaphore,
    next_number: Cell<u64>,
    /// Bytes on disk of the whole shard.
    total: Rc<Cell<u64>>,
}

impl Pile {
    pub fn new(directory: PathBuf, target: HostId, total: Rc<Cell<u64>>) -> Pile {
        Pile {
            target,
            directory,
            waiting: RefCell::default(),
            growing: RefCell::default(),
            queue: RefCell::default(),
            queued: Cell::new(0),
            written: Cell::new(0),
            failed_from: Cell::new(None),
            turn: Semaphore::new(1),
            next_number: Cell::new(1),
            total,
        }
    }

    /// Takes over the files of a directory.
    pub async fn adopt(&self, directory: &Path) -> io::Result<()> {
        let mut found: Vec<(u64, Waiting)> = Vec::new();
        for entry in rt::fs::read_dir(directory).await? {
            let number = entry.name.strip_suffix(ENDING).and_then(|number| number.parse::<u64>().ok());
            let Some(number) = number else { continue };
            found.push((number, Waiting { path: directory.join(&entry.name), bytes: entry.len, delivered: 0 }));
        }
        found.sort_by_key(|(number, _)| *number);
        for (number, file) in found {
            self.next_number.set(self.next_number.get().max(number + 1));
            self.total.set(self.total.get() + file.bytes);
            self.waiting.borrow_mut().push_back(file);
        }
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty() && self.growing.borrow().is_none() && self.queue.borrow().is_empty()
    }

    /// Appends a record; returns when the kernel has it. Records that come while one is being written are written together. They stay in the
    /// queue until they are written, so that whoever comes next writes them if this future is dropped.
    pub async fn append(&self, record: &[u8], file_bytes: u64) -> io::Result<()> {
        self.queue.borrow_mut().extend_from_slice(record);
        self.queued.set(self.queued.get() + 1);
        let own = self.queued.get();
        let _turn = self.turn.acquire().await.map_err(io::Error::other)?;
        if self.written.get() >= own {
            // Those who were written together have their turns one after the other: nobody has written since.
            return match self.failed_from.get() {
                Some(first) if own >= first => Err(io::Error::other("hints could not be written")),
                _ => Ok(()),
            };
        }
        let (first, upto) = (self.written.get() + 1, self.queued.get());
        let records = self.queue.borrow().clone();
        let len = records.len();
        let written = self.write(records, file_bytes).await;
        self.queue.borrow_mut().drain(..len);
        self.written.set(upto);
        self.failed_from.set(written.is_err().then_some(first));
        written
    }

    async fn write(&self, records: Vec<u8>, file_bytes: u64) -> io::Result<()> {
        let is_full = self.growing.borrow().as_ref().is_some_and(|growing| growing.len >= file_bytes);
        if is_full {
            self.close().await?;
        }
        if self.growing.borrow().is_none() {
            let growing = self.create().await?;
            *self.growing.borrow_mut() = Some(growing);
        }
        let (file, at) = match &*self.growing.borrow() {
            Some(growing) => (growing.file.clone(), growing.len),
            None => return Err(io::Error::other("the file of hints is gone")),
        };
        let len = records.len() as u64;
        if let Err(error) = file.write_at(at, records, IoClass::Background).await {
            // What was written of it is a torn end; nothing may follow it in this file.
            self.close().await?;
            return Err(error);
        }
        if let Some(growing) = &mut *self.growing.borrow_mut() {
            growing.len += len;
            growing.is_dirty = true;
        }
        self.total.set(self.total.get() + len);
        Ok(())
    }

    async fn create(&self) -> io::Result<Growing> {
        rt::fs::create_dir_all(&self.directory).await?;
        let number = self.next_number.replace(self.next_number.get() + 1);
        let path = self.directory.join(format!("{number:020}{ENDING}"));
        let file = rt::fs::open(&path, &OpenOptions::create_new()).await?;
        let header = format::header(self.target);
        let len = header.len() as u64;
        file.write_at(0, header, IoClass::Background).await?;
        rt::fs::sync_dir(&self.directory).await?;
        self.total.set(self.total.get() + len);
        Ok(Growing { file, path, len, is_dirty: true })
    }

    /// Has the file that grows wait for replay.
    async fn close(&self) -> io::Result<()> {
        let Some(growing) = self.growing.take() else { return Ok(()) };
        let synced = growing.file.sync_data().await;
        let file = Waiting { path: growing.path, bytes: growing.len, delivered: 0 };
        self.waiting.borrow_mut().push_back(file);
        synced
    }

    /// Has all that was appended wait for replay.
    pub async fn seal(&self) -> io::Result<()> {
        let _turn = self.turn.acquire().await.map_err(io::Error::other)?;
        self.close().await
    }

    pub async fn sync(&self) -> io::Result<()> {
        let dirty = match &mut *self.growing.borrow_mut() {
            Some(growing) if growing.is_dirty => {
                growing.is_dirty = false;
                growing.file.clone()
            }
            _ => return Ok(()),
        };
        dirty.sync_data().await
    }

    pub fn oldest(&self) -> Option<Waiting> {
        self.waiting.borrow().front().cloned()
    }

    pub fn delivered_up_to(&self, position: usize) {
        if let Some(oldest) = self.waiting.borrow_mut().front_mut() {
            oldest.delivered = position;
        }
    }

    pub async fn remove_oldest(&self) -> io::Result<()> {
        let oldest = self.waiting.borrow_mut().pop_front();
        let Some(oldest) = oldest else { return Ok(()) };
        self.total.set(self.total.get().saturating_sub(oldest.bytes));
        rt::fs::remove_file(&oldest.path).await
    }
}
