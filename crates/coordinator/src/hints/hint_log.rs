//! The hint files for one node: one file is appended to, the others wait for replay.
//!
//! Invariant: a file with hints is the active one or waits for replay. This holds also while an
//! operation waits for the disk, because its future may be dropped at any point.
//!
//! A sync that failed may have lost hints, and later syncs do not report that. So the target is
//! noted as missing writes, and the file is neither appended to nor measured again.

use super::format;
use super::manifest::Manifest;
use super::missed::{Cause, Missed};
use super::witness::Witness;
use model::id::HostId;
use rt::fs::{File, IoClass, OpenOptions};
use rt::sync::Semaphore;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The extension of hint files.
const EXTENSION: &str = ".hints";

/// A file that waits for replay.
#[derive(Clone)]
pub(super) struct SealedFile {
    pub path: PathBuf,
    /// The manifest that lists the file, and its number there.
    manifest: Rc<Manifest>,
    number: u64,
    bytes: u64,
    /// The position up to which hints were delivered since the node started.
    pub delivered: usize,
}

/// The files that differ from the manifest.
pub(super) struct Mismatch {
    /// The numbers of missing files.
    pub missing: BTreeSet<u64>,
    /// The numbers and lengths of files that are shorter than recorded.
    pub shorter: Vec<(u64, u64)>,
}

struct ActiveFile {
    file: File,
    path: PathBuf,
    number: u64,
    len: u64,
    /// The bytes of `len` that are durable.
    synced: u64,
    /// Whether a sync has failed.
    has_failed: bool,
}

pub(super) struct HintLog {
    pub target: HostId,
    directory: PathBuf,
    /// Whether the directory's entry in its parent is durable.
    is_durable: Cell<bool>,
    /// Lists the files of the directory.
    manifest: Rc<Manifest>,
    /// Records that there are hints, in case the manifest is lost.
    witness: Rc<Witness>,
    /// Records that the target misses writes.
    missed: Rc<Missed>,
    shard: u16,
    sealed: RefCell<VecDeque<SealedFile>>,
    active: RefCell<Option<ActiveFile>>,
    /// Records whose write has not begun, and the number of records ever queued.
    queue: RefCell<Vec<u8>>,
    queued: Cell<u64>,
    /// The number of records that were written, or that failed.
    written: Cell<u64>,
    /// The first record of the last write, if that failed.
    failed_from: Cell<Option<u64>>,
    /// Held by the task that writes the queue, or closes the active file.
    write_permit: Semaphore,
    /// Held during a sync. The holder of `write_permit` may wait for it, not the reverse.
    sync_permit: Semaphore,
    /// Whether a sync has failed, and the target is not noted yet.
    is_note_due: Cell<bool>,
    next_number: Cell<u64>,
    /// Bytes on disk of the entire shard.
    shard_bytes: Rc<Cell<u64>>,
}

impl HintLog {
    /// Creates the hint log of a target. The manifest belongs to shard `shard`.
    pub fn new(
        directory: PathBuf,
        (shard, manifest, witness, missed): (u16, Rc<Manifest>, Rc<Witness>, Rc<Missed>),
        target: HostId,
        shard_bytes: Rc<Cell<u64>>,
    ) -> HintLog {
        HintLog {
            target,
            directory,
            is_durable: Cell::new(false),
            manifest,
            witness,
            missed,
            shard,
            sealed: RefCell::default(),
            active: RefCell::default(),
            queue: RefCell::default(),
            queued: Cell::new(0),
            written: Cell::new(0),
            failed_from: Cell::new(None),
            write_permit: Semaphore::new(1),
            sync_permit: Semaphore::new(1),
            is_note_due: Cell::new(false),
            next_number: Cell::new(1),
            shard_bytes,
        }
    }

    /// Takes over the files of a directory. Returns which files of its manifest are missing, and
    /// which are shorter than recorded.
    pub async fn adopt(&self, directory: &Path, manifest: &Rc<Manifest>) -> io::Result<Mismatch> {
        let entries = match rt::fs::read_dir(directory).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            other => other?,
        };
        let mut found: BTreeMap<u64, SealedFile> = BTreeMap::new();
        for entry in entries {
            let number = entry.name.strip_suffix(EXTENSION).and_then(|number| number.parse::<u64>().ok());
            let Some(number) = number else { continue };
            let (path, manifest) = (directory.join(&entry.name), manifest.clone());
            found.insert(number, SealedFile { path, manifest, number, bytes: entry.len, delivered: 0 });
        }
        let (mut missing, mut shorter) = (manifest.files(self.target), Vec::new());
        for (number, file) in found {
            self.next_number.set(self.next_number.get().max(number + 1));
            if !missing.remove(&number) {
                if manifest.is_known() && file.bytes < format::header(self.target).len() as u64 {
                    // A crash came before a record was written to it.
                    let _ = rt::fs::remove_file(&file.path).await;
                    continue;
                }
                manifest.list(self.target, number);
            }
            if file.bytes < manifest.least(self.target, number) && file.bytes != format::EMPTIED {
                shorter.push((number, file.bytes));
            }
            self.shard_bytes.set(self.shard_bytes.get() + file.bytes);
            self.sealed.borrow_mut().push_back(file);
        }
        // A new file with the number of a missing one would hide the loss.
        let next = missing.last().map_or(0, |last| last + 1);
        self.next_number.set(self.next_number.get().max(next));
        Ok(Mismatch { missing, shorter })
    }

    pub fn is_empty(&self) -> bool {
        self.sealed.borrow().is_empty() && self.active.borrow().is_none() && self.queue.borrow().is_empty()
    }

    /// Bytes of records whose write has not begun, or is in progress.
    pub fn queued_bytes(&self) -> u64 {
        self.queue.borrow().len() as u64
    }

    /// Bytes that are not delivered yet: in files, and queued.
    pub fn pending(&self) -> u64 {
        let active = self.active.borrow().as_ref().map_or(0, |active| active.len);
        let sealed: u64 = self.sealed.borrow().iter().map(|file| file.bytes).sum();
        sealed + active + self.queued_bytes()
    }

    /// Appends a record; returns when the kernel has it. Records that arrive during a write are
    /// written together by the next one. A record stays in the queue until it is written: if this
    /// future is dropped, the next append writes it.
    pub async fn append(&self, record: &[u8], file_bytes: u64) -> io::Result<()> {
        self.queue.borrow_mut().extend_from_slice(record);
        self.queued.set(self.queued.get() + 1);
        let own = self.queued.get();
        let _permit = self.write_permit.acquire().await.map_err(io::Error::other)?;
        if self.written.get() >= own {
            // Another task has written this record. After a write, the tasks of its records get the
            // semaphore one after the other, so `failed_from` is still about that write.
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
        let is_full = |active: &ActiveFile| active.len >= file_bytes || active.has_failed;
        if self.active.borrow().as_ref().is_some_and(is_full) {
            self.close().await?;
        }
        if self.active.borrow().is_none() {
            let active = self.create().await?;
            *self.active.borrow_mut() = Some(active);
        }
        let (file, at) = match &*self.active.borrow() {
            Some(active) => (active.file.clone(), active.len),
            None => return Err(io::Error::other("the file of hints was closed")),
        };
        let len = records.len() as u64;
        if let Err(error) = file.write_at(at, records, IoClass::Background).await {
            // A failed write may leave a torn record. No record may follow it in this file.
            self.close().await?;
            return Err(error);
        }
        if let Some(active) = &mut *self.active.borrow_mut() {
            debug_assert_eq!(active.len, at, "hints are appended one after another");
            active.len += len;
        }
        self.shard_bytes.set(self.shard_bytes.get() + len);
        Ok(())
    }

    /// Creates a file. The manifest lists it once it is durable, and before a hint in it is
    /// acknowledged.
    async fn create(&self) -> io::Result<ActiveFile> {
        rt::fs::create_dir_all(&self.directory).await?;
        if let Some(parent) = self.directory.parent().filter(|_| !self.is_durable.get()) {
            rt::fs::sync_dir(parent).await?;
            self.is_durable.set(true);
        }
        let number = self.next_number.replace(self.next_number.get() + 1);
        let is_lower = |file: &SealedFile| file.number < number;
        debug_assert!(self.sealed.borrow().iter().all(is_lower), "no file of hints is written again");
        let path = self.directory.join(format!("{number:020}{EXTENSION}"));
        let file = rt::fs::open(&path, &OpenOptions::create_new()).await?;
        let header = format::header(self.target);
        let len = header.len() as u64;
        let begun = async {
            file.write_at(0, header, IoClass::Background).await?;
            rt::fs::sync_dir(&self.directory).await?;
            self.manifest.add(self.target, number).await
        };
        if let Err(error) = begun.await {
            // The file holds no hint. If it stays, the next start finds a file that is not listed.
            let _ = rt::fs::remove_file(&path).await;
            return Err(error);
        }
        if let Err(error) = self.witness.begin(self.shard, self.target).await {
            // A file that is still listed must stay.
            if self.manifest.remove(self.target, number).await.is_ok() {
                let _ = rt::fs::remove_file(&path).await;
            }
            return Err(error);
        }
        self.shard_bytes.set(self.shard_bytes.get() + len);
        Ok(ActiveFile { file, path, number, len, synced: 0, has_failed: false })
    }

    /// Closes the file that is appended to: it then waits for replay. The caller holds the permit
    /// to write.
    async fn close(&self) -> io::Result<()> {
        let synced = self.sync_active().await;
        if let Some(ActiveFile { path, number, len, .. }) = self.active.take() {
            let file = SealedFile { path, manifest: self.manifest.clone(), number, bytes: len, delivered: 0 };
            self.sealed.borrow_mut().push_back(file);
        }
        self.note_failed_sync().await;
        synced
    }

    /// Syncs the file that is appended to, unless an earlier sync of it has failed.
    async fn sync_active(&self) -> io::Result<()> {
        let _permit = self.sync_permit.acquire().await.map_err(io::Error::other)?;
        let (file, number, len) = match &*self.active.borrow() {
            Some(active) if active.synced < active.len && !active.has_failed => {
                (active.file.clone(), active.number, active.len)
            }
            _ => return Ok(()),
        };
        let synced = file.sync_data().await;
        if let Some(active) = self.active.borrow_mut().as_mut().filter(|active| active.number == number) {
            match &synced {
                Ok(()) => {
                    debug_assert!(self.manifest.least(self.target, number) <= len, "an open file of hints only grows");
                    active.synced = len;
                    self.manifest.measure(self.target, number, len);
                }
                Err(_) => {
                    active.has_failed = true;
                    self.is_note_due.set(true);
                }
            }
        }
        synced
    }

    /// Notes that the target misses writes, if a sync has failed.
    async fn note_failed_sync(&self) {
        if self.is_note_due.get() {
            // An error is logged, and `Missed` retries.
            let _ = self.missed.note(self.target, None, Cause::NotWritten).await;
            self.is_note_due.set(false);
            self.witness.record_missed().await;
        }
    }

    /// Makes all hints that were appended wait for replay.
    pub async fn seal(&self) -> io::Result<()> {
        let _permit = self.write_permit.acquire().await.map_err(io::Error::other)?;
        self.close().await
    }

    /// Makes the hints durable that were appended.
    pub async fn sync(&self) -> io::Result<()> {
        let synced = self.sync_active().await;
        self.note_failed_sync().await;
        synced
    }

    pub fn oldest(&self) -> Option<SealedFile> {
        self.sealed.borrow().front().cloned()
    }

    pub fn delivered_up_to(&self, position: usize) {
        if let Some(oldest) = self.sealed.borrow_mut().front_mut() {
            debug_assert!(oldest.delivered <= position, "a hint that was delivered is not delivered again");
            oldest.delivered = position;
        }
    }

    /// Skips the oldest file, which cannot be read, and leaves it for the next start. If the missed
    /// writes are noted durably (`is_noted`), the file is removed from the manifest.
    pub fn skip_oldest(&self, is_noted: bool) {
        let Some(oldest) = self.sealed.borrow_mut().pop_front() else { return };
        debug_assert!(self.shard_bytes.get() >= oldest.bytes, "the bytes of each file of hints are counted");
        self.shard_bytes.set(self.shard_bytes.get().saturating_sub(oldest.bytes));
        if is_noted {
            oldest.manifest.unlist(self.target, oldest.number);
        }
    }

    /// Removes the oldest file after all its hints were handled. After an error the file is kept.
    pub async fn remove_oldest(&self) -> io::Result<()> {
        let oldest = self.sealed.borrow().front().cloned();
        let Some(SealedFile { path, manifest, number, .. }) = oldest else { return Ok(()) };
        if let Err(error) = manifest.remove(self.target, number).await {
            // The disk may be full: free the file's space without writing the manifest.
            self.empty_oldest(&path).await?;
            return Err(error);
        }
        let oldest = self.sealed.borrow_mut().pop_front();
        debug_assert!(
            oldest.as_ref().is_some_and(|oldest| oldest.number == number),
            "hint replay removes its own file"
        );
        self.shard_bytes.set(self.shard_bytes.get().saturating_sub(oldest.map_or(0, |oldest| oldest.bytes)));
        rt::fs::remove_file(&path).await
    }

    /// Truncates the oldest file to the length that means "all delivered".
    async fn empty_oldest(&self, path: &Path) -> io::Result<()> {
        let len = format::EMPTIED;
        let file = rt::fs::open(path, &OpenOptions { write: true, ..OpenOptions::default() }).await?;
        file.set_len(len).await?;
        if let Some(oldest) = self.sealed.borrow_mut().front_mut() {
            self.shard_bytes.set(self.shard_bytes.get().saturating_sub(oldest.bytes.saturating_sub(len)));
            oldest.bytes = len;
        }
        Ok(())
    }
}

/// Whether the error has nothing to do with the file: the process has no descriptors or memory
/// left.
pub(super) fn is_of_process(error: &io::Error) -> bool {
    const ENOMEM: i32 = 12;
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.raw_os_error(), Some(ENOMEM | ENFILE | EMFILE))
}
