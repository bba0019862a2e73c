//! Which files of hints must be there: a file of hints that was removed looks like one that never was.
//!
//! One manifest for each directory of a shard. It lies in another directory than the hints, so it notices when all of them are gone.
//! It names files by target and number, and is replaced durably at each change.
//!
//! Invariant: the manifest names no file that is not there, whatever crashes. A file is named after its directory entry is durable and
//! before a hint in it is acknowledged. It is no longer named before it is removed. So a named file that is missing was removed by
//! somebody else, and a file that is not named holds no hint that somebody still needs. The latter is adopted all the same: it may be
//! of a release without manifests.
//!
//! The manifest also has the least length of files, noted after so many bytes were durable: with
//! each sync, and when a file is closed. So a shorter file was replaced by an older copy, or cut. A
//! copy from after the last sync is what a power loss may leave, and is not noticed.

use super::sealed;
use model::id::HostId;
use rt::sync::Semaphore;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

/// The version of the file: how often it was changed, the files, and the least lengths of some.
const FORMAT: u8 = 3;
/// The version without lengths.
const UNMEASURED: u8 = 2;
/// The version with the files alone.
const UNCOUNTED: u8 = 1;

/// What the file says: of each target, the first and last number of each run of files without a gap.
type Named = Vec<(HostId, Vec<(u64, u64)>)>;

/// What the file says of lengths: of each target, the numbers and least lengths of files in bytes.
type Lengths = Vec<(HostId, Vec<(u64, u64)>)>;

/// The files of hints that must be in one directory of a shard.
pub(super) struct Manifest {
    path: PathBuf,
    files: RefCell<BTreeMap<HostId, BTreeSet<u64>>>,
    /// The least lengths of files in bytes. They change without being counted.
    lengths: RefCell<BTreeMap<(HostId, u64), u64>>,
    /// Lengths have changed that are not on disk.
    is_outgrown: Cell<bool>,
    /// There was a manifest when the node started, and it could be read: what it does not name is of no use.
    is_known: bool,
    /// Why what was read is not what was there when the node stopped.
    lost: Option<&'static str>,
    /// Counts changes, and those that are on disk.
    changes: Cell<u64>,
    written: Cell<u64>,
    turn: Semaphore,
}

impl Manifest {
    /// Reads a manifest. Without one nothing is known of the files. It must have been changed
    /// `least` times.
    pub async fn open(path: PathBuf, least: u64) -> io::Result<Manifest> {
        let (found, mut lost) = match rt::fs::read(&path).await {
            Ok(bytes) => {
                let found = decode(&bytes);
                let lost = found.is_none().then_some("is damaged");
                if found.is_none() && least == 0 {
                    // A node must not fail to start over its own notes.
                    tracing::error!(file = %path.display(),
                        "the manifest of hints cannot be read: files of hints that are missing go unnoticed at this start");
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
        let (files, turn) = (RefCell::new(files), Semaphore::new(1));
        // Where there is none, one is written before the first file of hints is created: after a kill in between, that file is known to be
        // of no use.
        let before = sequence.max(least);
        let changes = Cell::new(before + u64::from(!is_known || lost.is_some() || sequence == 0));
        let written = Cell::new(before);
        Ok(Manifest { path, files, lengths, is_outgrown: Cell::new(false), is_known, lost, changes, written, turn })
    }

    /// Why it is not the manifest that it was.
    pub fn lost(&self) -> Option<&'static str> {
        self.lost
    }

    /// How often it was changed on disk.
    pub fn sequence(&self) -> u64 {
        self.written.get()
    }

    /// Whether nothing that a target needs is in a file which is not named.
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// The nodes of which files are named.
    pub fn targets(&self) -> Vec<HostId> {
        self.files.borrow().keys().copied().collect()
    }

    /// The numbers of the files that are named of a target.
    pub fn files(&self, target: HostId) -> BTreeSet<u64> {
        self.files.borrow().get(&target).cloned().unwrap_or_default()
    }

    /// Names a file, in memory.
    pub fn put(&self, target: HostId, number: u64) {
        if self.files.borrow_mut().entry(target).or_default().insert(number) {
            self.changes.set(self.changes.get() + 1);
        }
    }

    /// No longer names a file, in memory.
    pub fn take(&self, target: HostId, number: u64) {
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

    /// The least length of a file in bytes; 0 if none was noted.
    pub fn least(&self, target: HostId, number: u64) -> u64 {
        self.lengths.borrow().get(&(target, number)).copied().unwrap_or(0)
    }

    /// Notes in memory that so many bytes of a named file are durable.
    pub fn measure(&self, target: HostId, number: u64, bytes: u64) {
        if self.least(target, number) != bytes
            && self.files.borrow().get(&target).is_some_and(|of| of.contains(&number))
        {
            self.lengths.borrow_mut().insert((target, number), bytes);
            self.is_outgrown.set(true);
        }
    }

    /// Names a file, durably. After an error it is not named, but the file may be on disk with its name until the next
    /// [`Manifest::write`].
    pub async fn add(&self, target: HostId, number: u64) -> io::Result<()> {
        self.put(target, number);
        let written = self.write().await;
        if written.is_err() {
            self.take(target, number);
        }
        written
    }

    /// No longer names a file, durably. After an error it is still named.
    pub async fn remove(&self, target: HostId, number: u64) -> io::Result<()> {
        self.take(target, number);
        let written = self.write().await;
        if written.is_err() {
            self.put(target, number);
        }
        written
    }

    /// Puts on disk what has changed. Changes that come while another one is being written are written together.
    pub async fn write(&self) -> io::Result<()> {
        let own = self.changes.get();
        let is_written = || self.written.get() >= own && !self.is_outgrown.get();
        if is_written() {
            return Ok(());
        }
        let _turn = self.turn.acquire().await.map_err(io::Error::other)?;
        if is_written() {
            return Ok(());
        }
        let upto = self.changes.get();
        let bytes = sealed::encode(FORMAT, &(upto, self.named(), self.measured()));
        let was_outgrown = self.is_outgrown.replace(false);
        if let Err(error) = rt::fs::write_durably(&self.path, &bytes).await {
            self.is_outgrown.set(was_outgrown || self.is_outgrown.get());
            return Err(error);
        }
        self.written.set(upto);
        Ok(())
    }

    fn measured(&self) -> Lengths {
        let mut lengths = Lengths::new();
        for ((target, number), length) in self.lengths.borrow().iter() {
            match lengths.last_mut() {
                Some((last, of_target)) if last == target => of_target.push((*number, *length)),
                _ => lengths.push((*target, vec![(*number, *length)])),
            }
        }
        lengths
    }

    fn named(&self) -> Named {
        self.files.borrow().iter().map(|(target, numbers)| (*target, runs(numbers))).collect()
    }
}

fn decode(bytes: &[u8]) -> Option<(u64, Named, Lengths)> {
    let unmeasured = || sealed::decode(UNMEASURED, bytes).map(|(sequence, named)| (sequence, named, Lengths::new()));
    let uncounted = || Some((0, sealed::decode(UNCOUNTED, bytes)?, Lengths::new()));
    sealed::decode(FORMAT, bytes).or_else(unmeasured).or_else(uncounted)
}

/// The first and last number of each run without a gap.
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
        let named: Named = vec![(HostId(Uuid::from_u128(5)), runs(&numbers))];
        let body = [&[1, 16][..], &[0; 15], &[5, 2, 1, 3, 7, 7]].concat();
        assert_eq!(decode(&sealed::encode(UNCOUNTED, &named)), Some((0, named.clone(), Vec::new())));
        assert_eq!(decode(&sealed::encode(UNMEASURED, &(9_u64, &named))), Some((9, named.clone(), Vec::new())));
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
