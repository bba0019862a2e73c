//! The state of a simulated disk, and the effect of a power loss on it.

use super::super::names::Names;
use super::{DiskStats, Failed, Fault, Kind, Latency, Refusal, Unsynced};
use rand::Rng;
use rand::rngs::SmallRng;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

/// The default size of a disk.
pub(super) const UNLIMITED: u64 = 1 << 40;
/// The unit of bytes that survives a power loss entirely, or not at all.
const SECTOR: usize = 512;

/// The contents of a file, with or without names.
#[derive(Clone, Default)]
pub(super) struct Inode {
    pub seen: Vec<u8>,
    pub durable: Vec<u8>,
    pub dirty: BTreeSet<usize>,
    pub mtime_micros: i64,
    /// The number of bytes from the start with reserved space, written or not.
    pub reserved: u64,
    pub open: usize,
    /// A name of it was removed, so it may be garbage once closed.
    pub unlinked: bool,
}

impl Inode {
    pub fn write(&mut self, offset: usize, data: &[u8]) {
        let end = offset + data.len();
        if self.seen.len() < end {
            let from = self.seen.len();
            self.seen.resize(end, 0);
            self.mark(from, end);
        }
        self.seen[offset..end].copy_from_slice(data);
        self.mark(offset, end);
    }

    /// The space that it takes on the device.
    pub fn room(&self) -> u64 {
        self.reserved.max(self.seen.len() as u64)
    }

    pub fn mark(&mut self, from: usize, to: usize) {
        if from < to {
            self.dirty.extend(from / SECTOR..=(to - 1) / SECTOR);
        }
    }

    pub fn set_len(&mut self, len: usize) {
        let before = self.seen.len();
        if len <= before {
            // As on Linux: truncation frees the space reserved behind the end, even if the length
            // stays the same.
            self.reserved = 0;
        }
        self.seen.resize(len, 0);
        self.mark(before.min(len), before.max(len));
    }

    /// A failed sync: as on Linux, the pages count as clean from now on, and later syncs do not
    /// save them.
    pub fn forget(&mut self) {
        self.dirty.clear();
    }

    pub fn sync(&mut self) {
        self.durable.resize(self.seen.len(), 0);
        for sector in std::mem::take(&mut self.dirty) {
            let from = sector * SECTOR;
            let to = (from + SECTOR).min(self.seen.len());
            if from < to {
                self.durable[from..to].copy_from_slice(&self.seen[from..to]);
            }
        }
    }

    /// Power loss: sectors for which `survives` returns true reach the device, others do not.
    /// Reserved space is lost.
    pub fn lose(&mut self, mut survives: impl FnMut() -> bool) {
        let grew = self.seen.len() > self.durable.len();
        if !self.dirty.is_empty() && !grew && self.seen.len() < self.durable.len() && survives() {
            self.durable.truncate(self.seen.len());
        }
        for sector in std::mem::take(&mut self.dirty) {
            let from = sector * SECTOR;
            let to = (from + SECTOR).min(self.seen.len());
            if from < to && survives() {
                if self.durable.len() < to {
                    self.durable.resize(to, 0);
                }
                self.durable[from..to].copy_from_slice(&self.seen[from..to]);
            }
        }
        self.seen = self.durable.clone();
        self.reserved = 0;
    }
}

/// Operations that must fail.
#[derive(Clone)]
pub(super) struct Refusing {
    pub dir: PathBuf,
    pub refusal: Refusal,
    pub skip: u32,
    pub times: u32,
}

/// The complete state of a disk.
#[derive(Clone)]
pub(super) struct State {
    pub names: Names,
    pub inodes: BTreeMap<u64, Inode>,
    pub next_inode: u64,
    /// Off after a power loss until the next boot.
    pub on: bool,
    /// The number of machines that have used the disk. Handles of earlier ones are dead.
    pub boot: u64,
    pub stats: DiskStats,
    pub cut_at: Option<u64>,
    pub unsynced: Unsynced,
    pub capacity: u64,
    pub latency: Latency,
    pub locks: BTreeSet<PathBuf>,
    pub faults: BTreeMap<Fault, u32>,
    /// Faults limited to operations below a directory.
    pub aimed: BTreeMap<Fault, (PathBuf, u32)>,
    pub refusing: Option<Refusing>,
    pub rng: SmallRng,
    pub now_micros: i64,
}

impl State {
    pub fn inode(&mut self, inode: u64) -> &mut Inode {
        match self.inodes.get_mut(&inode) {
            Some(inode) => inode,
            None => unreachable!("an inode lives as long as a name or a handle"),
        }
    }

    pub fn used(&self) -> u64 {
        self.inodes.values().map(Inode::room).sum()
    }

    pub fn free(&self) -> u64 {
        // Summing up all files at every write is only necessary for disks that can be full.
        if self.capacity == UNLIMITED { UNLIMITED } else { self.capacity.saturating_sub(self.used()) }
    }

    /// Fails if a fault is due for an operation on `path`.
    pub fn fault_at(&mut self, fault: Fault, path: &Path) -> Result<(), Failed> {
        let is_aimed_at = matches!(self.aimed.get(&fault), Some((dir, _)) if path.starts_with(dir));
        self.fault(fault, is_aimed_at)
    }

    /// Fails if a fault is due for an operation on an open file.
    pub fn fault_of(&mut self, fault: Fault, inode: u64) -> Result<(), Failed> {
        let is_aimed_at = match self.aimed.get(&fault) {
            Some((dir, times)) if *times > 0 => {
                self.names.files().any(|(path, own)| own == inode && path.starts_with(dir))
            }
            _ => false,
        };
        self.fault(fault, is_aimed_at)
    }

    /// Fails if an operation of this kind on `path` is refused.
    pub fn refuse_at(&mut self, kind: Kind, path: &Path) -> Result<(), Failed> {
        let is_aimed_at = self.refusing.as_ref().is_some_and(|refusing| path.starts_with(&refusing.dir));
        self.refuse(kind, is_aimed_at)
    }

    /// Fails if an operation of this kind on an open file is refused.
    pub fn refuse_of(&mut self, kind: Kind, inode: u64) -> Result<(), Failed> {
        let is_aimed_at = match &self.refusing {
            Some(refusing) if refusing.times > 0 => {
                self.names.files().any(|(path, own)| own == inode && path.starts_with(&refusing.dir))
            }
            _ => false,
        };
        self.refuse(kind, is_aimed_at)
    }

    fn refuse(&mut self, kind: Kind, is_aimed_at: bool) -> Result<(), Failed> {
        let Some(refusing) = self.refusing.as_mut().filter(|refusing| is_aimed_at && refusing.refusal.concerns(kind))
        else {
            return Ok(());
        };
        match (refusing.skip, refusing.times) {
            (_, 0) => Ok(()),
            (0, _) => {
                refusing.times -= 1;
                Err(refusing.refusal.error().into())
            }
            _ => {
                refusing.skip -= 1;
                Ok(())
            }
        }
    }

    fn fault(&mut self, fault: Fault, is_aimed_at: bool) -> Result<(), Failed> {
        let aimed = self.aimed.get_mut(&fault).filter(|_| is_aimed_at).map(|(_, times)| times);
        for times in aimed.into_iter().chain(self.faults.get_mut(&fault)) {
            if *times > 0 {
                *times -= 1;
                let error = if fault == Fault::Open { libc::EMFILE } else { libc::EIO };
                return Err(io::Error::from_raw_os_error(error).into());
            }
        }
        Ok(())
    }

    /// Frees files that have neither names nor handles.
    pub fn collect(&mut self) {
        let held = self.names.inodes();
        self.inodes.retain(|inode, state| state.open > 0 || held.contains(inode));
    }

    pub fn collect_one(&mut self, inode: u64) {
        if !self.names.inodes().contains(&inode) {
            self.inodes.remove(&inode);
        }
    }

    pub fn lose_power(&mut self) {
        if !self.on {
            return;
        }
        let fate = match self.unsynced {
            Unsynced::Any => match self.rng.gen_range(0..4) {
                0 => Unsynced::Lost,
                1 => Unsynced::Kept,
                _ => Unsynced::Torn,
            },
            other => other,
        };
        let unsynced = self.names.unsynced();
        let kept = match fate {
            Unsynced::Lost => 0,
            Unsynced::Kept => unsynced,
            Unsynced::Torn | Unsynced::Any => self.rng.gen_range(0..=unsynced),
        };
        self.names.lose(kept);
        let rng = &mut self.rng;
        for inode in self.inodes.values_mut() {
            inode.lose(|| match fate {
                Unsynced::Lost => false,
                Unsynced::Kept => true,
                Unsynced::Torn | Unsynced::Any => rng.gen_bool(0.5),
            });
            inode.open = 0;
        }
        self.on = false;
        self.cut_at = None;
        self.locks.clear();
        self.stats.power_losses += 1;
        self.collect();
    }
}
