//! A simulated disk: its visible state, the state after a power loss, and faults.
//!
//! A write is visible at once and durable once synced. Names become durable with their directory
//! (see `names`). At a power loss each unsynced sector and name survives or not, according to
//! [`Unsynced`]. A disk outlives the runs that use it: create it outside, and pass clones in.
//! Clones are the same disk.
//!
//! Invariant: an operation that began before a power loss or a kill never completes after it.

mod handle;
mod state;

pub(crate) use handle::{SimFile, SimLock};
use state::{Inode, Refusing, State, UNLIMITED};

use super::derive;
use super::names::{NameEntry, Names, normal};
use crate::fs::{DirEntry, Metadata, OpenOptions};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// The effect of a power loss on unsynced data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unsynced {
    /// All of it is lost.
    Lost,
    /// All of it survives.
    Kept,
    /// Each sector survives or not, at random. Of the changes of names, the first few survive.
    Torn,
    /// One of the above, at random.
    #[default]
    Any,
}

/// The duration of operations.
#[derive(Debug, Clone, Copy)]
pub struct Latency {
    /// The minimum.
    pub min: Duration,
    /// The maximum. Simulated timers tick in milliseconds.
    pub max: Duration,
    /// The part of the operations, in 1/1000, that take time. The others complete within the same
    /// or the next poll.
    pub slow_permille: u32,
}

impl Default for Latency {
    fn default() -> Self {
        Self { min: Duration::from_millis(1), max: Duration::from_millis(2), slow_permille: 200 }
    }
}

/// An operation that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The next reads fail with EIO.
    Read,
    /// The next writes fail with EIO.
    Write,
    /// The next fsyncs fail with EIO. The data that they should have saved is never saved, also not
    /// by later ones.
    Sync,
    /// The next opens fail with EMFILE: the process has no descriptors left.
    Open,
}

/// An error of the operating system that every operation of certain kinds returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// EMFILE, for operations that need a descriptor: opens, listings and syncs of directories.
    NoDescriptors,
    /// ENOSPC, for operations that need space: writes, new names.
    NoSpace,
    /// EACCES, for operations on names.
    NoAccess,
    /// EIO, for all operations.
    Broken,
}

impl Refusal {
    fn error(self) -> io::Error {
        io::Error::from_raw_os_error(match self {
            Refusal::NoDescriptors => libc::EMFILE,
            Refusal::NoSpace => libc::ENOSPC,
            Refusal::NoAccess => libc::EACCES,
            Refusal::Broken => libc::EIO,
        })
    }

    fn concerns(self, kind: Kind) -> bool {
        match self {
            Refusal::NoDescriptors => matches!(kind, Kind::Open | Kind::Create | Kind::Directory),
            Refusal::NoSpace => matches!(kind, Kind::Create | Kind::NewName | Kind::Write),
            Refusal::NoAccess => !matches!(kind, Kind::Write | Kind::Read),
            Refusal::Broken => true,
        }
    }
}

/// The kinds of file operations that refusals distinguish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Opening an existing file.
    Open,
    /// Creating a file by opening it.
    Create,
    /// Listing a directory, or syncing it.
    Directory,
    /// Creating a directory, a link or a new name.
    NewName,
    /// Removing a name, or reading its metadata.
    Name,
    /// Writing to an open file, or syncing it.
    Write,
    /// Reading an open file.
    Read,
}

/// The counters of a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Operations that change something: writes, syncs, changes of names and lengths.
    pub writes: u64,
    /// Reads of files.
    pub reads: u64,
    /// Power losses.
    pub power_losses: u64,
}

/// Why an operation has no result.
pub(crate) enum Failed {
    Io(io::Error),
    /// The machine that started the operation is gone; the operation never completes.
    Dead,
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl From<io::ErrorKind> for Failed {
    fn from(kind: io::ErrorKind) -> Self {
        Self::Io(kind.into())
    }
}

type Outcome<T> = Result<T, Failed>;

/// A simulated disk.
#[derive(Clone)]
pub struct Disk {
    state: Rc<RefCell<State>>,
}

impl Disk {
    /// An empty disk of 1 TiB whose choices are derived from `seed`.
    pub fn new(seed: u64) -> Self {
        let state = State {
            names: Names::default(),
            inodes: BTreeMap::new(),
            next_inode: 1,
            on: true,
            boot: 0,
            stats: DiskStats::default(),
            cut_at: None,
            unsynced: Unsynced::default(),
            capacity: UNLIMITED,
            latency: Latency::default(),
            locks: BTreeSet::new(),
            faults: BTreeMap::new(),
            aimed: BTreeMap::new(),
            refusing: None,
            rng: SmallRng::seed_from_u64(derive(seed, &[0xD15C])),
            now_micros: 0,
        };
        Self { state: Rc::new(RefCell::new(state)) }
    }

    /// A copy of the disk with the same contents, settings and random choices.
    pub fn fork(&self) -> Self {
        Self { state: Rc::new(RefCell::new(self.state.borrow().clone())) }
    }

    /// Replaces the contents by the contents of a copy, such as an earlier [`Disk::fork`]. No
    /// machine may use the disk.
    pub fn restore(&self, copy: &Disk) {
        let State { names, inodes, next_inode, .. } = copy.state.borrow().clone();
        let mut state = self.state.borrow_mut();
        (state.names, state.inodes, state.next_inode) = (names, inodes, next_inode);
    }

    /// The counters.
    pub fn stats(&self) -> DiskStats {
        self.state.borrow().stats
    }

    /// The number of changing operations (see [`DiskStats::writes`]).
    pub fn writes(&self) -> u64 {
        self.stats().writes
    }

    /// Cuts the power during the `n`-th changing operation from now (1 is the next). That operation
    /// may take effect in part, and never completes.
    pub fn power_loss_at_write(&self, n: u64) {
        let mut state = self.state.borrow_mut();
        state.cut_at = Some(state.stats.writes + n);
    }

    /// Cancels [`Disk::power_loss_at_write`].
    pub fn no_power_loss(&self) {
        self.state.borrow_mut().cut_at = None;
    }

    /// Sets the effect of power losses on unsynced data.
    pub fn set_unsynced(&self, unsynced: Unsynced) {
        self.state.borrow_mut().unsynced = unsynced;
    }

    /// Sets the duration of operations from now on.
    pub fn set_latency(&self, latency: Latency) {
        self.state.borrow_mut().latency = latency;
    }

    /// Sets the total size in bytes. If it is less than the used or reserved space, every write
    /// that grows a file beyond its reserved space fails with ENOSPC.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.borrow_mut().capacity = bytes;
    }

    /// Sets the free space in bytes, in addition to the reserved space.
    pub fn set_free(&self, bytes: u64) {
        let mut state = self.state.borrow_mut();
        state.capacity = state.used() + bytes;
    }

    /// Makes the next `times` operations of a kind fail.
    pub fn fail_next(&self, fault: Fault, times: u32) {
        self.state.borrow_mut().faults.insert(fault, times);
    }

    /// Makes the next `times` operations of a kind fail that concern a file (for syncs: or a
    /// directory) below `dir`. Others succeed.
    pub fn fail_next_below(&self, dir: impl AsRef<Path>, fault: Fault, times: u32) {
        self.state.borrow_mut().aimed.insert(fault, (normal(dir.as_ref()), times));
    }

    /// Makes operations below `dir` fail. Of the operations that `refusal` concerns, the next
    /// `skip` succeed, and the `times` after them fail.
    pub fn refuse_below(&self, dir: impl AsRef<Path>, refusal: Refusal, skip: u32, times: u32) {
        self.state.borrow_mut().refusing = Some(Refusing { dir: normal(dir.as_ref()), refusal, skip, times });
    }

    /// Cancels [`Disk::refuse_below`]. Returns how many operations would still have failed.
    pub fn refuse_nothing(&self) -> u32 {
        self.state.borrow_mut().refusing.take().map_or(0, |refusing| refusing.times)
    }

    /// Flips one bit of a file, on the device and in memory. Returns false if there is no such
    /// byte.
    pub fn flip_bit(&self, path: impl AsRef<Path>, byte: u64, bit: u8) -> bool {
        let mut state = self.state.borrow_mut();
        let Ok(inode) = state.names.file(&normal(path.as_ref())) else { return false };
        let Some(inode) = state.inodes.get_mut(&inode) else { return false };
        let (at, mask) = (byte as usize, 1u8 << (bit % 8));
        let Some(seen) = inode.seen.get_mut(at) else { return false };
        *seen ^= mask;
        if let Some(durable) = inode.durable.get_mut(at) {
            *durable ^= mask;
        }
        true
    }

    /// The visible contents of a file.
    pub fn contents(&self, path: impl AsRef<Path>) -> Option<Vec<u8>> {
        let state = self.state.borrow();
        let inode = state.names.file(&normal(path.as_ref())).ok()?;
        state.inodes.get(&inode).map(|inode| inode.seen.clone())
    }

    /// All files with their lengths, in order of path.
    pub fn files(&self) -> Vec<(PathBuf, u64)> {
        let state = self.state.borrow();
        let len = |inode| state.inodes.get(&inode).map_or(0, |i| i.seen.len() as u64);
        state.names.files().map(|(path, inode)| (path.to_path_buf(), len(inode))).collect()
    }

    /// Cuts the power now: everything that uses the disk stops forever, and unsynced data is lost
    /// as configured.
    pub fn lose_power(&self) {
        self.state.borrow_mut().lose_power();
    }

    /// Whether the power is on. It is off from a power loss to the next start of a machine on this
    /// disk.
    pub fn is_on(&self) -> bool {
        self.state.borrow().on
    }

    /// Starts a machine on this disk: the power is on, and locks and handles of earlier machines
    /// are gone.
    pub(crate) fn start_machine(&self) {
        let mut state = self.state.borrow_mut();
        state.on = true;
        state.boot += 1;
        state.locks.clear();
        for inode in state.inodes.values_mut() {
            inode.open = 0;
        }
        state.collect();
    }

    /// The duration of the next operation; `None` if it completes at once.
    pub(crate) fn next_delay(&self) -> Option<Duration> {
        let mut state = self.state.borrow_mut();
        let latency = state.latency;
        if state.rng.gen_range(0..1000) >= latency.slow_permille {
            return None;
        }
        let (min, max) = (latency.min.as_micros() as u64, latency.max.as_micros() as u64);
        Some(Duration::from_micros(state.rng.gen_range(min..=max.max(min))))
    }

    /// The number of the current boot.
    pub(crate) fn boot(&self) -> u64 {
        self.state.borrow().boot
    }

    fn alive(&self, boot: u64) -> Outcome<std::cell::RefMut<'_, State>> {
        let state = self.state.borrow_mut();
        if !state.on || state.boot != boot {
            return Err(Failed::Dead);
        }
        Ok(state)
    }

    /// Runs one changing operation. Cuts the power during it if that is due.
    fn change<T>(&self, boot: u64, now: i64, f: impl FnOnce(&mut State) -> Outcome<T>) -> Outcome<T> {
        let mut state = self.alive(boot)?;
        state.now_micros = now;
        state.stats.writes += 1;
        let cut = state.cut_at == Some(state.stats.writes);
        let out = f(&mut state);
        if cut {
            state.lose_power();
            return Err(Failed::Dead);
        }
        out
    }

    pub(crate) fn open(&self, boot: u64, now: i64, path: &Path, options: &OpenOptions) -> Outcome<SimFile> {
        let path = normal(path);
        self.alive(boot)?.fault_at(Fault::Open, &path)?;
        let existing = self.alive(boot)?.names.get(&path);
        let kind = if existing.is_some() { Kind::Open } else { Kind::Create };
        self.alive(boot)?.refuse_at(kind, &path)?;
        let inode = match existing {
            Some(NameEntry::Dir) => return Err(io::ErrorKind::IsADirectory.into()),
            Some(NameEntry::File(_)) if options.create_new => return Err(io::ErrorKind::AlreadyExists.into()),
            Some(NameEntry::File(inode)) => {
                if options.truncate {
                    self.change(boot, now, |state| {
                        state.inode(inode).set_len(0);
                        Ok(())
                    })?;
                }
                inode
            }
            None if options.create || options.create_new => self.change(boot, now, |state| {
                let inode = state.next_inode;
                state.names.add_file(&path, inode)?;
                state.next_inode += 1;
                state.inodes.insert(inode, Inode { mtime_micros: now, ..Inode::default() });
                Ok(inode)
            })?,
            None => return Err(io::ErrorKind::NotFound.into()),
        };
        self.alive(boot)?.inode(inode).open += 1;
        Ok(SimFile { disk: self.clone(), boot, inode, direct: options.direct })
    }

    pub(crate) fn rename(&self, boot: u64, now: i64, from: &Path, to: &Path) -> Outcome<()> {
        self.change(boot, now, |state| {
            state.refuse_at(Kind::NewName, &normal(to))?;
            if let Some(NameEntry::File(inode)) = state.names.get(&normal(to)) {
                state.inode(inode).unlinked = true;
            }
            state.names.rename(&normal(from), &normal(to))?;
            state.collect();
            Ok(())
        })
    }

    pub(crate) fn hard_link(&self, boot: u64, now: i64, existing: &Path, new: &Path) -> Outcome<()> {
        self.change(boot, now, |state| {
            state.refuse_at(Kind::NewName, &normal(new))?;
            let inode = state.names.file(&normal(existing))?;
            Ok(state.names.add_file(&normal(new), inode)?)
        })
    }

    pub(crate) fn remove_file(&self, boot: u64, now: i64, path: &Path) -> Outcome<()> {
        self.change(boot, now, |state| {
            let path = normal(path);
            state.refuse_at(Kind::Name, &path)?;
            let inode = state.names.file(&path)?;
            state.inode(inode).unlinked = true;
            state.names.remove_file(&path)?;
            state.collect();
            Ok(())
        })
    }

    pub(crate) fn remove_dir_all(&self, boot: u64, now: i64, path: &Path) -> Outcome<()> {
        self.change(boot, now, |state| {
            let path = normal(path);
            state.refuse_at(Kind::Name, &path)?;
            let below: Vec<u64> =
                state.names.files().filter(|(file, _)| file.starts_with(&path)).map(|(_, inode)| inode).collect();
            for inode in below {
                state.inode(inode).unlinked = true;
            }
            state.names.remove_tree(&path)?;
            state.collect();
            Ok(())
        })
    }

    pub(crate) fn create_dir_all(&self, boot: u64, now: i64, path: &Path) -> Outcome<()> {
        let path = normal(path);
        if self.alive(boot)?.names.get(&path) == Some(NameEntry::Dir) {
            return Ok(());
        }
        self.change(boot, now, |state| {
            state.refuse_at(Kind::NewName, &path)?;
            Ok(state.names.add_dirs(&path)?)
        })
    }

    pub(crate) fn sync_dir(&self, boot: u64, now: i64, path: &Path) -> Outcome<()> {
        let path = normal(path);
        let existing = self.alive(boot)?.names.get(&path);
        match existing {
            Some(NameEntry::Dir) => {}
            Some(NameEntry::File(_)) => return Err(io::ErrorKind::NotADirectory.into()),
            None => return Err(io::ErrorKind::NotFound.into()),
        }
        self.change(boot, now, |state| {
            state.fault_at(Fault::Sync, &path)?;
            state.refuse_at(Kind::Directory, &path)?;
            if state.cut_at != Some(state.stats.writes) {
                state.names.sync(&path);
                state.collect();
            }
            Ok(())
        })
    }

    pub(crate) fn read_dir(&self, boot: u64, path: &Path) -> Outcome<Vec<DirEntry>> {
        let mut state = self.alive(boot)?;
        state.refuse_at(Kind::Directory, &normal(path))?;
        let entries = state.names.list(&normal(path))?;
        let len = |inode| state.inodes.get(&inode).map_or(0, |i| i.seen.len() as u64);
        Ok(entries
            .into_iter()
            .map(|(name, entry)| {
                let name = name.to_string_lossy().into_owned();
                match entry {
                    NameEntry::Dir => DirEntry { name, is_dir: true, len: 0 },
                    NameEntry::File(inode) => DirEntry { name, is_dir: false, len: len(inode) },
                }
            })
            .collect())
    }

    pub(crate) fn metadata(&self, boot: u64, path: &Path) -> Outcome<Metadata> {
        let mut state = self.alive(boot)?;
        state.refuse_at(Kind::Name, &normal(path))?;
        match state.names.get(&normal(path)) {
            None => Err(io::ErrorKind::NotFound.into()),
            Some(NameEntry::Dir) => Ok(Metadata { len: 0, mtime_micros: 0, is_dir: true }),
            Some(NameEntry::File(inode)) => {
                let inode = state.inode(inode);
                Ok(Metadata { len: inode.seen.len() as u64, mtime_micros: inode.mtime_micros, is_dir: false })
            }
        }
    }

    /// Locks a path, creating the file. Fails with `WouldBlock` if it is locked.
    pub(crate) fn lock(&self, boot: u64, now: i64, path: &Path) -> Outcome<SimLock> {
        let options = OpenOptions { write: true, create: true, ..OpenOptions::default() };
        drop(self.open(boot, now, path, &options)?);
        self.lock_dir(boot, path)
    }

    /// Locks an existing path.
    pub(crate) fn lock_dir(&self, boot: u64, path: &Path) -> Outcome<SimLock> {
        let path = normal(path);
        if !self.alive(boot)?.locks.insert(path.clone()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(SimLock { disk: self.clone(), boot, path })
    }

    /// Total and free bytes.
    pub(crate) fn space(&self, boot: u64) -> Outcome<(u64, u64)> {
        let state = self.alive(boot)?;
        Ok((state.capacity, state.free()))
    }
}
