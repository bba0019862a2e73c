//! The hint files that must exist. Without a manifest, a removed hint file looks like a file that
//! never existed.
//!
//! There is one manifest for each hint directory of a shard. It lies outside of the hint directory,
//! so that the loss of the entire directory is detected. It lists files by target and number, and
//! is replaced durably at each change.
//!
//! Invariant: after any crash, each file that the manifest lists exists. A file is listed after its
//! directory entry is durable, and before a hint in it is acknowledged. It is removed from the list
//! before it is deleted. So a listed file that is missing was removed from outside, and a file that
//! is not listed holds no hint that is still needed. Files that are not listed are adopted
//! nevertheless, because a release without manifests may have written them.
//!
//! The manifest also records the minimum length of each file, which is the number of bytes that are
//! durable. It is updated at each sync, and when a file is closed. A file that is shorter was
//! truncated or replaced by an older copy. A copy that was made after the last sync is not
//! detected: a power loss may leave the same file. If the manifest was replaced by an older copy,
//! too, its sequence number shows that (see [`super::witness`]).

use super::sealed;
use model::id::HostId;
use rt::sync::Semaphore;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

/// The format version: the sequence number, the files, and the minimum lengths of some files.
const FORMAT: u8 = 3;

/// The listed files: for each target, the first and last number of each run of consecutive files.
type ListedFiles = Vec<(HostId, Vec<(u64, u64)>)>;

/// The minimum lengths: for each target, the numbers of files and their lengths in bytes.
type Lengths = Vec<(HostId, Vec<(u64, u64)>)>;

/// The hint files that must exist in one directory of a shard.
pub(super) struct Manifest {
    path: PathBuf,
    files: RefCell<BTreeMap<HostId, BTreeSet<u64>>>,
    /// The minimum lengths of files in bytes.
    lengths: RefCell<BTreeMap<(HostId, u64), u64>>,
    /// Whether a readable manifest existed when the node started. If so, files that it does not
    /// list hold no hint that is needed.
    is_known: bool,
    /// Why the manifest differs from the manifest at the last stop, if it does.
    lost: Option<&'static str>,
    /// The number of changes of the list and of lengths, and the number of changes that are on disk
    /// (`written`). A change of a length counts: otherwise an older copy of the manifest, together
    /// with older copies of the files, has the same sequence number as the manifest.
    changes: Cell<u64>,
    written: Cell<u64>,
    write_permit: Semaphore,
}

impl Manifest {
    /// Reads a manifest. If it does not exist, no files are listed. Its sequence number must be at
    /// least `least`.
    pub async fn open(path: PathBuf, least: u64) -> io::Result<Manifest> {
        let (found, mut lost) = match rt::fs::read(&path).await {
            Ok(bytes) => {
                let found = decode(&bytes);
                let lost = found.is_none().then_some("is damaged");
                if found.is_none() && least == 0 {
                    // A node must start even if its own notes are damaged.
                    tracing::error!(file = %path.display(),
                        "the manifest of hints is damaged: this start does not detect missing files of hints. If files may be missing, \
                         run `messina admin resync NODE --force` for each node that was down");
                }
                (found, lost)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (None, (least > 0).then_some("is missing")),
            Err(error) => return Err(error),
        };
        let is_known = found.is_some();
        let (sequence, named, lengths) = found.unwrap_or_default();
        if is_known && sequence < least {
            lost = Some("is older than when the node stopped");
        }
        let numbers = |runs: Vec<(u64, u64)>| runs.into_iter().flat_map(|(first, last)| first..=last).collect();
        let files = named.into_iter().map(|(target, runs)| (target, numbers(runs))).collect();
        let of_target = |(target, lengths): (HostId, Vec<(u64, u64)>)| {
            lengths.into_iter().map(move |(number, length)| ((target, number), length))
        };
        let lengths = RefCell::new(lengths.into_iter().flat_map(of_target).collect());
        let (files, write_permit) = (RefCell::new(files), Semaphore::new(1));
        // A missing manifest is written before the first hint file is created. If the node is
        // killed in between, the file is known to hold no hint that is needed.
        let before = sequence.max(least);
        let changes = Cell::new(before + u64::from(!is_known || lost.is_some() || sequence == 0));
        let written = Cell::new(before);
        Ok(Manifest { path, files, lengths, is_known, lost, changes, written, write_permit })
    }

    /// Why this manifest differs from the manifest at the last stop.
    pub fn lost(&self) -> Option<&'static str> {
        self.lost
    }

    /// The sequence number: how often the manifest was changed on disk.
    pub fn sequence(&self) -> u64 {
        self.written.get()
    }

    /// Whether files that are not listed hold no hint that a target needs.
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// The nodes with listed files.
    pub fn targets(&self) -> Vec<HostId> {
        self.files.borrow().keys().copied().collect()
    }

    /// The numbers of the files that are listed for a target.
    pub fn files(&self, target: HostId) -> BTreeSet<u64> {
        self.files.borrow().get(&target).cloned().unwrap_or_default()
    }

    /// Lists a file, in memory.
    pub fn list(&self, target: HostId, number: u64) {
        if self.files.borrow_mut().entry(target).or_default().insert(number) {
            self.changes.set(self.changes.get() + 1);
        }
    }

    /// Removes a file from the list, in memory.
    pub fn unlist(&self, target: HostId, number: u64) {
        let mut files = self.files.borrow_mut();
        self.lengths.borrow_mut().remove(&(target, number));
        let Some(of_target) = files.get_mut(&target) else { return };
        if of_target.remove(&number) {
            self.changes.set(self.changes.get() + 1);
        }
        if of_target.is_empty() {
            files.remove(&target);
        }
    }

    /// The minimum length of a file in bytes; 0 if none was recorded.
    pub fn least(&self, target: HostId, number: u64) -> u64 {
        self.lengths.borrow().get(&(target, number)).copied().unwrap_or(0)
    }

    /// Records in memory that this many bytes of a listed file are durable.
    pub fn measure(&self, target: HostId, number: u64, bytes: u64) {
        if self.least(target, number) != bytes
            && self.files.borrow().get(&target).is_some_and(|of| of.contains(&number))
        {
            self.lengths.borrow_mut().insert((target, number), bytes);
            self.changes.set(self.changes.get() + 1);
        }
    }

    /// Lists a file, durably. After an error the file is not listed in memory, but it may be listed
    /// on disk until the next [`Manifest::write`].
    pub async fn add(&self, target: HostId, number: u64) -> io::Result<()> {
        self.list(target, number);
        let written = self.write().await;
        if written.is_err() {
            self.unlist(target, number);
        }
        written
    }

    /// Removes a file from the list, durably. After an error the file is still listed.
    pub async fn remove(&self, target: HostId, number: u64) -> io::Result<()> {
        self.unlist(target, number);
        let written = self.write().await;
        if written.is_err() {
            self.list(target, number);
        }
        written
    }

    /// Writes the changes to disk. Changes that arrive during a write are written together by the
    /// next one.
    pub async fn write(&self) -> io::Result<()> {
        let own = self.changes.get();
        let is_written = || self.written.get() >= own;
        if is_written() {
            return Ok(());
        }
        let _permit = self.write_permit.acquire().await.map_err(io::Error::other)?;
        if is_written() {
            return Ok(());
        }
        let upto = self.changes.get();
        debug_assert!(self.written.get() <= upto, "the sequence of a manifest only grows");
        let bytes = sealed::encode(FORMAT, &(upto, self.listed(), self.min_lengths()));
        rt::fs::write_durably(&self.path, &bytes).await?;
        self.written.set(upto);
        Ok(())
    }

    fn min_lengths(&self) -> Lengths {
        let mut lengths = Lengths::new();
        for ((target, number), length) in self.lengths.borrow().iter() {
            match lengths.last_mut() {
                Some((last, of_target)) if last == target => of_target.push((*number, *length)),
                _ => lengths.push((*target, vec![(*number, *length)])),
            }
        }
        lengths
    }

    fn listed(&self) -> ListedFiles {
        self.files.borrow().iter().map(|(target, numbers)| (*target, runs(numbers))).collect()
    }
}

fn decode(bytes: &[u8]) -> Option<(u64, ListedFiles, Lengths)> {
    sealed::decode(FORMAT, bytes)
}

/// The first and last number of each run of consecutive numbers.
fn runs(numbers: &BTreeSet<u64>) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn the_form_of_the_file_stays() {
        let numbers = BTreeSet::from([1, 2, 3, 7]);
        let named: ListedFiles = vec![(HostId(Uuid::from_u128(5)), runs(&numbers))];
        let body = [&[1, 16][..], &[0; 15], &[5, 2, 1, 3, 7, 7]].concat();
        let lengths: Lengths = vec![(HostId(Uuid::from_u128(5)), vec![(7, 100)])];
        let bytes = sealed::encode(FORMAT, &(9_u64, &named, &lengths));
        let body = [&[9][..], &body, &[1, 16][..], &[0; 15], &[5, 1, 7, 100]].concat();
        assert_eq!(bytes[..5], [FORMAT, body.len() as u8, 0, 0, 0]);
        assert_eq!(bytes[5..bytes.len() - 4], body);
        assert_eq!(decode(&bytes), Some((9, named, lengths)));
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 4;
            assert_eq!(decode(&bad), None, "byte {at}");
        }
    }
}
