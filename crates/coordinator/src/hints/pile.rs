//! The files of hints for one node: one that grows, and those that wait for replay.

use super::format;
use super::manifest::Manifest;
use super::witness::Witness;
use model::id::HostId;
use rt::fs::{File, IoClass, OpenOptions};
use rt::sync::Semaphore;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The ending of the files' names.
const ENDING: &str = ".hints";

/// A file that waits for replay.
#[derive(Clone)]
pub(super) struct Waiting {
    pub path: PathBuf,
    /// What names it, and its number there.
    manifest: Rc<Manifest>,
    number: u64,
    bytes: u64,
    /// Up to where it was delivered since the node started.
    pub delivered: usize,
}

/// The files that are not what they were.
pub(super) struct Unlike {
    /// The numbers of files that are not there.
    pub missing: BTreeSet<u64>,
    /// The numbers and lengths of files that are shorter than they were.
    pub shorter: Vec<(u64, u64)>,
}

struct Growing {
    file: File,
    path: PathBuf,
    number: u64,
    len: u64,
    /// What was written and not synced.
    is_dirty: bool,
}

pub(super) struct Pile {
    pub target: HostId,
    directory: PathBuf,
    /// A power loss does not take the directory away.
    is_durable: Cell<bool>,
    /// Names the files of the directory.
    manifest: Rc<Manifest>,
    /// Knows that there are hints, should the manifest be lost.
    witness: Rc<Witness>,
    shard: u16,
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
    /// Of a shard of this number, which the manifest belongs to.
    pub fn new(
        directory: PathBuf,
        (shard, manifest, witness): (u16, Rc<Manifest>, Rc<Witness>),
        target: HostId,
        total: Rc<Cell<u64>>,
    ) -> Pile {
        Pile {
            target,
            directory,
            is_durable: Cell::new(false),
            manifest,
            witness,
            shard,
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

    /// Takes over the files of a directory, which a manifest names. Says which of them are missing,
    /// and which are shorter than they were.
    pub async fn adopt(&self, directory: &Path, manifest: &Rc<Manifest>) -> io::Result<Unlike> {
        let entries = match rt::fs::read_dir(directory).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            other => other?,
        };
        let mut found: BTreeMap<u64, Waiting> = BTreeMap::new();
        for entry in entries {
            let number = entry.name.strip_suffix(ENDING).and_then(|number| number.parse::<u64>().ok());
            let Some(number) = number else { continue };
            let (path, manifest) = (directory.join(&entry.name), manifest.clone());
            found.insert(number, Waiting { path, manifest, number, bytes: entry.len, delivered: 0 });
        }
        let (mut missing, mut shorter) = (manifest.files(self.target), Vec::new());
        for (number, file) in found {
            self.next_number.set(self.next_number.get().max(number + 1));
            if !missing.remove(&number) {
                if manifest.is_known() && file.bytes < format::header(self.target).len() as u64 {
                    // A crash came before anything was put into it.
                    let _ = rt::fs::remove_file(&file.path).await;
                    continue;
                }
                manifest.put(self.target, number);
            }
            if file.bytes < manifest.least(self.target, number) && file.bytes != format::EMPTIED {
                shorter.push((number, file.bytes));
            }
            self.total.set(self.total.get() + file.bytes);
            self.waiting.borrow_mut().push_back(file);
        }
        // A new file with the number of a missing one would hide that.
        let next = missing.last().map_or(0, |last| last + 1);
        self.next_number.set(self.next_number.get().max(next));
        Ok(Unlike { missing, shorter })
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.borrow().is_empty() && self.growing.borrow().is_none() && self.queue.borrow().is_empty()
    }

    /// Bytes that are not delivered yet: of files, and of records that are on their way into one.
    pub fn pending(&self) -> u64 {
        let growing = self.growing.borrow().as_ref().map_or(0, |growing| growing.len);
        let waiting: u64 = self.waiting.borrow().iter().map(|file| file.bytes).sum();
        waiting + growing + self.queue.borrow().len() as u64
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

    /// A new file. Nothing is acknowledged before the manifest names it, and the manifest names it once it is durable.
    async fn create(&self) -> io::Result<Growing> {
        rt::fs::create_dir_all(&self.directory).await?;
        if let Some(parent) = self.directory.parent().filter(|_| !self.is_durable.get()) {
            rt::fs::sync_dir(parent).await?;
            self.is_durable.set(true);
        }
        let number = self.next_number.replace(self.next_number.get() + 1);
        let path = self.directory.join(format!("{number:020}{ENDING}"));
        let file = rt::fs::open(&path, &OpenOptions::create_new()).await?;
        let header = format::header(self.target);
        let len = header.len() as u64;
        let begun = async {
            file.write_at(0, header, IoClass::Background).await?;
            rt::fs::sync_dir(&self.directory).await?;
            self.manifest.add(self.target, number).await
        };
        if let Err(error) = begun.await {
            // Nothing is in it. If it stays, the next start finds it without a name.
            let _ = rt::fs::remove_file(&path).await;
            return Err(error);
        }
        if let Err(error) = self.witness.begin(self.shard, self.target).await {
            // A file that is still named must stay.
            if self.manifest.remove(self.target, number).await.is_ok() {
                let _ = rt::fs::remove_file(&path).await;
            }
            return Err(error);
        }
        self.total.set(self.total.get() + len);
        Ok(Growing { file, path, number, len, is_dirty: true })
    }

    /// Has the file that grows wait for replay.
    async fn close(&self) -> io::Result<()> {
        let Some(Growing { file, path, number, len, .. }) = self.growing.take() else { return Ok(()) };
        let synced = file.sync_data().await;
        if synced.is_ok() {
            self.manifest.measure(self.target, number, len);
        }
        let file = Waiting { path, manifest: self.manifest.clone(), number, bytes: len, delivered: 0 };
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
                (growing.file.clone(), growing.number, growing.len)
            }
            _ => return Ok(()),
        };
        let (file, number, len) = dirty;
        file.sync_data().await?;
        // It may have been closed meanwhile, with more bytes.
        self.manifest.measure(self.target, number, len.max(self.manifest.least(self.target, number)));
        Ok(())
    }

    pub fn oldest(&self) -> Option<Waiting> {
        self.waiting.borrow().front().cloned()
    }

    pub fn delivered_up_to(&self, position: usize) {
        if let Some(oldest) = self.waiting.borrow_mut().front_mut() {
            oldest.delivered = position;
        }
    }

    /// Leaves a file that cannot be read where it is, if it is there, for the next start. It is known by then what that costs, so the manifest
    /// does not name it any more if `is_noted`.
    pub fn forget_oldest(&self, is_noted: bool) {
        let Some(oldest) = self.waiting.borrow_mut().pop_front() else { return };
        self.total.set(self.total.get().saturating_sub(oldest.bytes));
        if is_noted {
            oldest.manifest.take(self.target, oldest.number);
        }
    }

    /// Removes a file of which nothing is to be delivered any more. After an error it waits on.
    pub async fn remove_oldest(&self) -> io::Result<()> {
        let oldest = self.waiting.borrow().front().cloned();
        let Some(Waiting { path, manifest, number, .. }) = oldest else { return Ok(()) };
        if let Err(error) = manifest.remove(self.target, number).await {
            // The disk may be full: what the file takes up must not wait for the manifest.
            self.empty_oldest(&path).await?;
            return Err(error);
        }
        let oldest = self.waiting.borrow_mut().pop_front();
        self.total.set(self.total.get().saturating_sub(oldest.map_or(0, |oldest| oldest.bytes)));
        rt::fs::remove_file(&path).await
    }

    /// Cuts the oldest file to what says that all of it was delivered.
    async fn empty_oldest(&self, path: &Path) -> io::Result<()> {
        let len = format::EMPTIED;
        let file = rt::fs::open(path, &OpenOptions { write: true, ..OpenOptions::default() }).await?;
        file.set_len(len).await?;
        if let Some(oldest) = self.waiting.borrow_mut().front_mut() {
            self.total.set(self.total.get().saturating_sub(oldest.bytes.saturating_sub(len)));
            oldest.bytes = len;
        }
        Ok(())
    }
}

/// Whether the system refused for a reason that says nothing of the file: the process has no
/// descriptors or no memory.
pub(super) fn is_of_process(error: &io::Error) -> bool {
    const ENOMEM: i32 = 12;
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.raw_os_error(), Some(ENOMEM | ENFILE | EMFILE))
}
