//! The open files of a shard's sstables: a bounded number.
//!
//! A file is opened when it is first read. It is closed when other files need its place and it has
//! not been read lately. This is a clock algorithm: a file that was read since the last pass stays
//! open. So thousands of sstables do not need thousands of descriptors, and files that are read
//! often stay open. If the process still runs out of descriptors, half of the open files are
//! closed.
//!
//! Invariant: before the files of an sstable in use are removed from disk, they are opened, and
//! stay open ([`LazyFile::keep`]). They could not be opened any more afterwards.

use crate::error::Error;
use bytes::Bytes;
use rt::fs::{File, IoClass, OpenOptions};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};

/// The limit without configuration.
const USUAL_LIMIT: usize = 1024;
/// The lowest limit, so that a reader of several sstables makes progress.
const LEAST_LIMIT: usize = 4;

/// Counters and sizes of the open files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenFilesStats {
    /// Files open now.
    pub open: usize,
    /// The limit.
    pub limit: usize,
    /// Files opened since the start.
    pub opened: u64,
    /// Files closed to make room since the start.
    pub closed: u64,
}

/// The open files of a shard.
pub struct OpenFiles {
    limit: Cell<usize>,
    open: Cell<usize>,
    opened: Cell<u64>,
    closed: Cell<u64>,
    /// The open files, and some that are closed by now, in the order of the clock.
    clock: RefCell<VecDeque<Weak<Slot>>>,
}

struct Slot {
    files: Rc<OpenFiles>,
    path: PathBuf,
    file: RefCell<Option<File>>,
    /// Whether it was read since the clock's last pass.
    used: Cell<bool>,
    /// Whether it stays open until the slot is dropped.
    kept: Cell<bool>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            self.files.open.set(self.files.open.get() - 1);
        }
    }
}

/// A file that is opened when it is read.
pub(crate) struct LazyFile(Rc<Slot>);

/// Whether the error says that the process, or the machine, has no descriptors left.
pub fn is_out_of_files(error: &io::Error) -> bool {
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    matches!(error.raw_os_error(), Some(ENFILE | EMFILE))
}

impl OpenFiles {
    /// Allows `limit` open files, but at least `LEAST_LIMIT`.
    pub fn new(limit: usize) -> Rc<OpenFiles> {
        Rc::new(OpenFiles {
            limit: Cell::new(limit.max(LEAST_LIMIT)),
            open: Cell::new(0),
            opened: Cell::new(0),
            closed: Cell::new(0),
            clock: RefCell::default(),
        })
    }

    /// Allows `USUAL_LIMIT` open files.
    pub fn usual() -> Rc<OpenFiles> {
        OpenFiles::new(USUAL_LIMIT)
    }

    /// The counters and sizes.
    pub fn stats(&self) -> OpenFilesStats {
        OpenFilesStats {
            open: self.open.get(),
            limit: self.limit.get(),
            opened: self.opened.get(),
            closed: self.closed.get(),
        }
    }

    /// Closes half of the open files that may be closed, because descriptors are needed elsewhere.
    /// Returns how many.
    pub fn give_back(&self) -> usize {
        let before = self.open.get();
        self.close_down_to(before / 2);
        debug_assert!(self.open.get() <= before, "closing opens no file");
        before - self.open.get()
    }

    /// Closes files until at most `target` are open, or none is left that may be closed.
    fn close_down_to(&self, target: usize) {
        let mut clock = self.clock.borrow_mut();
        // Two passes: in the first one, all files may turn out to have been read lately.
        let mut steps = 2 * clock.len();
        while self.open.get() > target && steps > 0 {
            steps -= 1;
            let Some(next) = clock.pop_front() else { break };
            let Some(slot) = next.upgrade() else { continue };
            if slot.kept.get() || slot.used.replace(false) {
                clock.push_back(next);
            } else if slot.file.take().is_some() {
                self.open.set(self.open.get() - 1);
                self.closed.set(self.closed.get() + 1);
            }
        }
    }

    fn note_open(&self, slot: &Rc<Slot>) {
        debug_assert!(slot.file.borrow().is_some(), "only an open file is counted");
        self.open.set(self.open.get() + 1);
        self.opened.set(self.opened.get() + 1);
        let mut clock = self.clock.borrow_mut();
        if clock.len() > 2 * self.open.get() + 64 {
            // Slots of dropped sstables.
            clock.retain(|own| own.strong_count() > 0);
        }
        clock.push_back(Rc::downgrade(slot));
    }
}

impl LazyFile {
    pub fn new(files: &Rc<OpenFiles>, path: PathBuf) -> LazyFile {
        let (used, kept) = (Cell::new(false), Cell::new(false));
        LazyFile(Rc::new(Slot { files: files.clone(), path, file: RefCell::default(), used, kept }))
    }

    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The open file; opens it if necessary.
    pub async fn open(&self) -> Result<File, Error> {
        self.0.used.set(true);
        if let Some(file) = &*self.0.file.borrow() {
            return Ok(file.clone());
        }
        self.open_again().await.map_err(Error::io(self.path()))
    }

    async fn open_again(&self) -> io::Result<File> {
        let (slot, files) = (&self.0, &self.0.files);
        files.close_down_to(files.limit.get() - 1);
        let mut opened = rt::fs::open(&slot.path, &OpenOptions::read_direct()).await;
        if opened.as_ref().is_err_and(is_out_of_files) && files.give_back() > 0 {
            opened = rt::fs::open(&slot.path, &OpenOptions::read_direct()).await;
        }
        let mut own = slot.file.borrow_mut();
        if let Some(file) = &*own {
            // Another task opened it meanwhile, perhaps before the file was removed from disk.
            return Ok(file.clone());
        }
        let file = opened?;
        *own = Some(file.clone());
        drop(own);
        files.note_open(slot);
        // Other tasks may have opened files at the same time.
        files.close_down_to(files.limit.get());
        Ok(file)
    }

    /// Like [`File::read_at`].
    pub async fn read_at(&self, offset: u64, len: usize, class: IoClass) -> Result<Bytes, Error> {
        self.open().await?.read_at(offset, len, class).await.map_err(Error::io(self.path()))
    }

    /// Whether it is open now.
    pub fn is_open(&self) -> bool {
        self.0.file.borrow().is_some()
    }

    /// Opens it, and keeps it open until it is dropped.
    pub async fn keep(&self) -> Result<(), Error> {
        self.0.kept.set(true);
        self.open().await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use test_support::Scratch;

    fn make(dir: &Path, files: &Rc<OpenFiles>, count: u8) -> Vec<LazyFile> {
        let one = |n: u8| {
            let path = dir.join(n.to_string());
            std::fs::write(&path, [n; 100]).expect("written");
            LazyFile::new(files, path)
        };
        (0..count).map(one).collect()
    }

    async fn read(file: &LazyFile) -> u8 {
        file.read_at(50, 1, IoClass::Foreground).await.expect("read")[0]
    }

    #[test]
    fn no_more_are_open_than_allowed_and_all_can_be_read() {
        rt::block_on(async {
            let (dir, files) = (Scratch::new("open-files"), OpenFiles::new(8));
            let all = make(&dir, &files, 40);
            assert_eq!(files.stats().open, 0, "none is opened before it is read");
            for _ in 0..3 {
                for (n, file) in all.iter().enumerate() {
                    assert_eq!(read(file).await, n as u8);
                    assert!(files.stats().open <= 8);
                }
            }
            assert_eq!(files.stats().opened, 120, "each came by when it had been closed");
            let before = files.stats().opened;
            for n in 0..100 {
                // Files that are read all the time stay open.
                read(&all[0]).await;
                read(&all[1]).await;
                read(&all[2 + n % 38]).await;
            }
            assert!(files.stats().opened - before <= 104, "{:?}", files.stats());
            drop(all);
            assert_eq!(files.stats().open, 0);
        });
    }

    #[test]
    fn kept_files_outlive_their_names() {
        rt::block_on(async {
            let (dir, files) = (Scratch::new("open-files"), OpenFiles::new(4));
            let all = make(&dir, &files, 20);
            all[3].keep().await.expect("opened");
            std::fs::remove_file(all[3].path()).expect("removed");
            std::fs::remove_file(all[4].path()).expect("removed");
            for file in all.iter().skip(5) {
                read(file).await;
            }
            assert_eq!(read(&all[3]).await, 3);
            assert_eq!(files.give_back(), 2);
            assert_eq!(read(&all[3]).await, 3, "nor is it given back");
            let gone = all[4].read_at(0, 1, IoClass::Foreground).await.expect_err("it was not kept");
            let Error::Io { path, source } = gone else { panic!("{gone}") };
            assert_eq!((path.as_path(), source.kind()), (all[4].path(), io::ErrorKind::NotFound));
        });
    }
}
