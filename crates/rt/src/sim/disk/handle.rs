//! Open files and locks of a simulated disk.

use super::{Disk, Fault, Kind, NameEntry, Outcome, normal};
use bytes::Bytes;
use std::io;
use std::path::{Path, PathBuf};

/// An open file of a simulated disk.
pub(crate) struct SimFile {
    pub disk: Disk,
    pub(super) boot: u64,
    pub(super) inode: u64,
    pub(super) direct: bool,
}

/// A held lock.
pub(crate) struct SimLock {
    pub(super) disk: Disk,
    pub(super) boot: u64,
    pub(super) path: PathBuf,
}

impl std::fmt::Debug for SimLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SimLock").field(&self.path).finish()
    }
}

impl Drop for SimLock {
    fn drop(&mut self) {
        if let Ok(mut state) = self.disk.alive(self.boot) {
            state.locks.remove(&self.path);
        }
    }
}

impl SimFile {
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    pub fn read(&self, offset: u64, len: usize) -> Outcome<Bytes> {
        let mut state = self.disk.alive(self.boot)?;
        state.stats.reads += 1;
        state.fault_of(Fault::Read, self.inode)?;
        state.refuse_of(Kind::Read, self.inode)?;
        let seen = &state.inode(self.inode).seen;
        let from = (offset as usize).min(seen.len());
        let to = from.saturating_add(len).min(seen.len());
        Ok(Bytes::copy_from_slice(&seen[from..to]))
    }

    /// Writes `data`. If the disk is full, writes as much as fits, then fails.
    pub fn write(&self, now: i64, offset: u64, data: &[u8]) -> Outcome<()> {
        self.disk.change(self.boot, now, |state| {
            state.fault_of(Fault::Write, self.inode)?;
            state.refuse_of(Kind::Write, self.inode)?;
            let free = state.free();
            let inode = state.inode(self.inode);
            let growth = (offset + data.len() as u64).saturating_sub(inode.room());
            let fits = data.len() - (growth.saturating_sub(free) as usize).min(data.len());
            if fits > 0 {
                inode.write(offset as usize, &data[..fits]);
                inode.mtime_micros = now;
            }
            if fits < data.len() {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC).into());
            }
            Ok(())
        })
    }

    pub fn set_len(&self, now: i64, len: u64) -> Outcome<()> {
        self.disk.change(self.boot, now, |state| {
            let free = state.free();
            let inode = state.inode(self.inode);
            if len.saturating_sub(inode.room()) > free {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC).into());
            }
            inode.set_len(len as usize);
            inode.mtime_micros = now;
            Ok(())
        })
    }

    /// Reserves space for the first `len` bytes: all of it or nothing.
    pub fn allocate(&self, now: i64, len: u64) -> Outcome<()> {
        self.disk.change(self.boot, now, |state| {
            state.refuse_of(Kind::Write, self.inode)?;
            let free = state.free();
            let inode = state.inode(self.inode);
            if len.saturating_sub(inode.room()) > free {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC).into());
            }
            inode.reserved = inode.reserved.max(len);
            Ok(())
        })
    }

    pub fn sync(&self, now: i64) -> Outcome<()> {
        self.disk.change(self.boot, now, |state| {
            let synced =
                state.fault_of(Fault::Sync, self.inode).and_then(|()| state.refuse_of(Kind::Write, self.inode));
            if let Err(failed) = synced {
                state.inode(self.inode).forget();
                return Err(failed);
            }
            // A sync that a power loss interrupts may have saved nothing.
            if state.cut_at != Some(state.stats.writes) {
                state.inode(self.inode).sync();
            }
            Ok(())
        })
    }

    pub fn is_at(&self, path: &Path) -> Outcome<bool> {
        let state = self.disk.alive(self.boot)?;
        Ok(matches!(state.names.get(&normal(path)), Some(NameEntry::File(inode)) if inode == self.inode))
    }

    pub fn len(&self) -> Outcome<u64> {
        let mut state = self.disk.alive(self.boot)?;
        Ok(state.inode(self.inode).seen.len() as u64)
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        if let Ok(mut state) = self.disk.alive(self.boot) {
            let inode = state.inode(self.inode);
            inode.open = inode.open.saturating_sub(1);
            if inode.open == 0 && inode.unlinked {
                state.collect_one(self.inode);
            }
        }
    }
}
