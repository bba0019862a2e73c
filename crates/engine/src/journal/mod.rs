//! The local journal of a node's metadata commands: opaque bodies, each chained to the one before, and snapshots.
//!
//! ```text
//! journal/log-<n>        a header, then the entries after snapshot n (n = 0: after nothing)
//! journal/snapshot-<n>   what all entries up to some id amount to
//! ```
//!
//! An entry names the id it follows and its own id. [`Journal::append`] is a compare-and-append: it refuses an entry that
//! does not follow the last one, and returns when the entry is on the device. A snapshot begins a new log that holds the
//! entries after it; the step that makes it count is the rename of its file.
//!
//! Invariants: what `append` or `snapshot` returned `Ok` for is there after any crash; a torn tail is cut off at open;
//! damage before a whole entry or an end mark is an error, because every entry was durable before those were written. A failed
//! fsync ends the journal. The journal must never look into a body.

mod format;

use bytes::Bytes;
use format::{LogHeader, Scan, SnapshotFile};
use rt::fs::{self, File, IoClass, OpenOptions};
use rt::sync::Semaphore;
use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use uuid::Uuid;

pub use format::MAX_BODY;

/// One command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The id of the entry (or snapshot) it follows; nil for the very first.
    pub previous: Uuid,
    /// Its own id.
    pub id: Uuid,
    /// The command.
    pub body: Bytes,
}

/// The state after all entries up to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The id of the last entry it contains.
    pub id: Uuid,
    /// The state.
    pub body: Bytes,
}

/// What can go wrong with a journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The entry does not follow the last one.
    #[error("the entry follows {given}, and the last one of the journal is {last}")]
    WrongPrevious {
        /// The id that the caller took for the last.
        given: Uuid,
        /// The last.
        last: Uuid,
    },
    /// The snapshot is of an id that the journal does not have.
    #[error("the journal has no entry {0}")]
    UnknownId(Uuid),
    /// The body is too large.
    #[error("a body of {0} bytes is too large for the journal")]
    TooLarge(usize),
    /// Something that was durable is damaged.
    #[error(
        "{file} is damaged at byte {offset} ({why}): restore its directory exactly as it was when the node stopped. An older copy is \
         unsafe on a member of a cluster, because the node's votes are in it: replace such a node by a new one with an empty data \
         directory. On a node without others the directory can be restored from a backup, or moved away; a start with --accept-loss \
         then begins without keyspaces, tables and roles"
    )]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// Where.
        offset: u64,
        /// What is wrong.
        why: String,
    },
    /// Another node wrote it.
    #[error(
        "{0} is of another node: put its directory back exactly as it was when this node stopped. A member of a cluster cannot start \
         with the votes of another node, nor without its own: if they are lost, replace it by a new node with an empty data directory. \
         On a node without others the directory can be restored from a backup of this node, or moved away; a start with --accept-loss \
         then begins without keyspaces, tables and roles"
    )]
    Foreign(PathBuf),
    /// A later release wrote it.
    #[error("the journal {file} was written by a later release (format {found}, this one knows up to {known})")]
    Newer {
        /// The file.
        file: PathBuf,
        /// Its format.
        found: u32,
        /// The newest known one.
        known: u32,
    },
    /// An earlier write or fsync failed: the node must stop.
    #[error("the journal has failed: {0}")]
    Failed(String),
    /// The operating system refused.
    #[error("{path}: {error}{}", fs::way_out(.path, .error))]
    Io {
        /// Of what.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

impl JournalError {
    /// Whether the disk (or a quota) is full.
    pub fn is_full(&self) -> bool {
        matches!(self, JournalError::Io { error, .. } if is_full(error))
    }

    /// Whether the disk is full, or there are no descriptors left: nothing is wrong with the
    /// device, and the same may succeed later.
    pub fn may_pass(&self) -> bool {
        matches!(self, JournalError::Io { error, .. } if may_pass(error))
    }
}

/// Whether the disk is full, or there are no descriptors left.
pub(crate) fn may_pass(error: &io::Error) -> bool {
    is_full(error) || sstable::is_out_of_files(error)
}

/// Whether the disk (or a quota) is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// An open journal.
pub struct Journal {
    dir: PathBuf,
    /// One append or snapshot at a time.
    turn: Semaphore,
    state: RefCell<State>,
}

struct State {
    number: u64,
    file: File,
    /// Where the next entry goes.
    end: u64,
    last: Uuid,
    /// What the log follows: the id of the snapshot, or nil.
    base: Uuid,
    /// The ids of the log's entries, and where each ends.
    entries: Vec<(Uuid, u64)>,
    failed: Option<String>,
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> JournalError {
    let path = path.to_path_buf();
    move |error| JournalError::Io { path, error }
}

impl Journal {
    /// Opens the journal in `dir`, making it if it is not there. Gives the latest snapshot and the entries after it.
    pub async fn open(dir: &Path) -> Result<(Journal, Vec<Entry>, Option<Snapshot>), JournalError> {
        fs::create_dir_all(dir).await.map_err(io_error(dir))?;
        let names = fs::read_dir(dir).await.map_err(io_error(dir))?;
        let numbers = |prefix: &'static str| {
            names.iter().filter_map(move |entry| entry.name.strip_prefix(prefix)?.parse::<u64>().ok())
        };
        let number = numbers("snapshot-").max().unwrap_or(0);
        let snapshot = match number {
            0 => None,
            _ => Some(read_snapshot(&snapshot_path(dir, number), number).await?),
        };
        let base = snapshot.as_ref().map_or(Uuid::nil(), |snapshot| snapshot.id);
        let path = log_path(dir, number);
        let exists = names.iter().any(|entry| path.file_name().is_some_and(|name| *name == *entry.name));
        if !exists {
            if number > 0 || numbers("log-").next().is_some() {
                let why = "it is missing".to_string();
                return Err(JournalError::Corrupt { file: path, offset: 0, why });
            }
            make_log(dir, 0, base, &[]).await?;
        }
        let (state, entries) = read_log(&path, number, base).await?;
        // What an interrupted snapshot left: an older pair, a younger log, a temporary file.
        for entry in &names {
            let kept = entry.name == format!("log-{number}") || entry.name == format!("snapshot-{number}");
            if !kept && (entry.name.starts_with("log-") || entry.name.starts_with("snapshot-")) && !entry.is_dir {
                remove_if_there(&dir.join(&entry.name)).await?;
            }
        }
        fs::sync_dir(dir).await.map_err(io_error(dir))?;
        let journal = Journal { dir: dir.to_path_buf(), turn: Semaphore::new(1), state: RefCell::new(state) };
        Ok((journal, entries, snapshot))
    }

    /// The id of the last entry, or of the snapshot if none follows it; nil in an empty journal.
    pub fn last(&self) -> Uuid {
        self.state.borrow().last
    }

    /// Bytes of the log since the last snapshot.
    pub fn log_bytes(&self) -> u64 {
        self.state.borrow().end
    }

    /// Appends an entry that follows `previous`. Returns when it is durable. When it fails the entry may or may not be
    /// there after a restart; after a failed write nothing more is accepted, except that a full disk can be tried again.
    pub async fn append(&self, previous: Uuid, id: Uuid, body: &[u8]) -> Result<(), JournalError> {
        if body.len() > MAX_BODY {
            return Err(JournalError::TooLarge(body.len()));
        }
        let _turn = self.turn().await?;
        let (file, at, bytes) = {
            let state = self.state.borrow();
            state.check()?;
            if state.last != previous {
                return Err(JournalError::WrongPrevious { given: previous, last: state.last });
            }
            (state.file.clone(), state.end, format::encode_entry(state.number, state.end, previous, id, body))
        };
        // Armed until the entry is durable: an append that is dropped half-way leaves the file's end unknown.
        let armed = FailOnDrop { journal: self, why: Some("an append was interrupted".into()) };
        let len = bytes.len() as u64;
        match file.write_at(at, bytes, IoClass::Log).await {
            Ok(()) => {}
            Err(error) => {
                let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
                // What was written of it lies behind the end, and the next entry is written over it.
                armed.finish(if full { None } else { Some(format!("a write failed: {error}")) });
                return Err(io_error(file.path())(error));
            }
        }
        if let Err(error) = file.sync_data().await {
            armed.finish(Some(format!("an fsync failed: {error}")));
            return Err(io_error(file.path())(error));
        }
        armed.finish(None);
        let (end, mark) = {
            let mut state = self.state.borrow_mut();
            state.end = at + len;
            state.last = id;
            state.entries.push((id, at + len));
            (state.end, format::encode_end_mark(state.number, state.end, id))
        };
        // Without the mark damage to the last entry would go unnoticed, and nothing worse: the entry itself is safe.
        if let Err(error) = file.write_at(end, mark, IoClass::Log).await {
            tracing::warn!(file = %file.path().display(), %error, "the journal's end could not be marked");
        } else if let Err(error) = file.sync_data().await {
            self.state.borrow_mut().failed = Some(format!("an fsync failed: {error}"));
        }
        Ok(())
    }

    /// Replaces all entries up to and including `id` by a snapshot. Entries after it are kept.
    pub async fn snapshot(&self, id: Uuid, body: &[u8]) -> Result<(), JournalError> {
        if body.len() > MAX_BODY {
            return Err(JournalError::TooLarge(body.len()));
        }
        let _turn = self.turn().await?;
        let (file, number, from, end, kept) = {
            let state = self.state.borrow();
            state.check()?;
            let from = match state.entries.iter().rposition(|(entry, _)| *entry == id) {
                Some(index) => (state.entries[index].1, index + 1),
                None if id == state.base => (format::LOG_HEADER, 0),
                None => return Err(JournalError::UnknownId(id)),
            };
            (state.file.clone(), state.number, from.0, state.end, state.entries[from.1..].to_vec())
        };
        let next = number + 1;
        let tail = file.read_at(from, (end - from) as usize, IoClass::Log).await.map_err(io_error(file.path()))?;
        let scan = format::scan(&tail, number, from, id);
        if scan.entries.len() != kept.len() {
            let offset = from + scan.end as u64;
            let why = "an entry cannot be read back".to_string();
            return Err(JournalError::Corrupt { file: file.path().to_path_buf(), offset, why });
        }
        let entries: Vec<Entry> = scan.entries.into_iter().map(|(entry, _)| entry).collect();
        // A younger log without its snapshot is of no meaning; the snapshot's name makes both count.
        let (new_file, ends) = make_log(&self.dir, next, id, &entries).await?;
        let path = snapshot_path(&self.dir, next);
        let bytes = SnapshotFile { number: next, id }.encode(body);
        let armed = FailOnDrop { journal: self, why: Some("a snapshot was interrupted".into()) };
        if let Err(error) = fs::write_durably(&path, &bytes).await {
            // Whether the name is there is not known: nothing may be appended to the old log any more.
            armed.finish(Some(format!("a snapshot could not be written: {error}")));
            return Err(io_error(&path)(error));
        }
        armed.finish(None);
        {
            let mut state = self.state.borrow_mut();
            state.number = next;
            state.base = id;
            state.end = ends.last().copied().unwrap_or(format::LOG_HEADER);
            state.entries = entries.iter().map(|entry| entry.id).zip(ends).collect();
            state.file = new_file;
        }
        for old in [log_path(&self.dir, number), snapshot_path(&self.dir, number)] {
            remove_if_there(&old).await?;
        }
        fs::sync_dir(&self.dir).await.map_err(io_error(&self.dir))
    }

    async fn turn(&self) -> Result<rt::sync::SemaphorePermit<'_>, JournalError> {
        self.turn.acquire().await.map_err(|_| JournalError::Failed("it was closed".into()))
    }
}

impl State {
    fn check(&self) -> Result<(), JournalError> {
        match &self.failed {
            Some(why) => Err(JournalError::Failed(why.clone())),
            None => Ok(()),
        }
    }
}

/// Fails the journal unless told otherwise.
struct FailOnDrop<'a> {
    journal: &'a Journal,
    why: Option<String>,
}

impl FailOnDrop<'_> {
    fn finish(mut self, why: Option<String>) {
        self.why = why;
    }
}

impl Drop for FailOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(why) = self.why.take() {
            self.journal.state.borrow_mut().failed = Some(why);
        }
    }
}

async fn remove_if_there(path: &Path) -> Result<(), JournalError> {
    match fs::remove_file(path).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error(path)(error)),
        _ => Ok(()),
    }
}

fn log_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("log-{number}"))
}

fn snapshot_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("snapshot-{number}"))
}

/// Makes a log with these entries, durable; says where each entry ends.
async fn make_log(dir: &Path, number: u64, base: Uuid, entries: &[Entry]) -> Result<(File, Vec<u64>), JournalError> {
    let path = log_path(dir, number);
    let mut bytes = LogHeader { number, base }.encode().to_vec();
    let mut ends = Vec::new();
    for entry in entries {
        let at = bytes.len() as u64;
        bytes.extend_from_slice(&format::encode_entry(number, at, entry.previous, entry.id, &entry.body));
        ends.push(bytes.len() as u64);
    }
    let last = entries.last().map_or(base, |entry| entry.id);
    bytes.extend_from_slice(&format::encode_end_mark(number, bytes.len() as u64, last));
    // Durable under its name in one step: a log is either absent or whole.
    fs::write_durably(&path, &bytes).await.map_err(io_error(&path))?;
    let options = OpenOptions { read: true, write: true, ..OpenOptions::default() };
    let file = fs::open(&path, &options).await.map_err(io_error(&path))?;
    Ok((file, ends))
}

async fn read_snapshot(path: &Path, number: u64) -> Result<Snapshot, JournalError> {
    let bytes = Bytes::from(fs::read(path).await.map_err(io_error(path))?);
    let (file, body) = SnapshotFile::decode(&bytes).map_err(|bad| bad.at(path, 0))?;
    if file.number != number {
        return Err(format::Bad::Damaged("it has the number of another snapshot").at(path, 0));
    }
    Ok(Snapshot { id: file.id, body: bytes.slice(body) })
}

async fn read_log(path: &Path, number: u64, base: Uuid) -> Result<(State, Vec<Entry>), JournalError> {
    let options = OpenOptions { read: true, write: true, ..OpenOptions::default() };
    let file = fs::open(path, &options).await.map_err(io_error(path))?;
    let bytes = Bytes::from(fs::read(path).await.map_err(io_error(path))?);
    let header = LogHeader::decode(&bytes).map_err(|bad| bad.at(path, 0))?;
    if header.number != number || header.base != base {
        return Err(format::Bad::Damaged("it does not follow the snapshot").at(path, 0));
    }
    let start = format::LOG_HEADER;
    let Scan { entries, end, bad, whole_behind, marked } =
        format::scan(&bytes.slice(start as usize..), number, start, base);
    let end = start + end as u64;
    if let Some(bad) = bad
        && (whole_behind || bad.is_certain())
    {
        return Err(bad.at(path, end));
    }
    let last = entries.last().map_or(base, |(entry, _)| entry.id);
    if end < bytes.len() as u64 && !marked {
        tracing::warn!(file = %path.display(), at = end, bytes = bytes.len() as u64 - end, "the torn tail of the journal is cut off");
        file.set_len(end).await.map_err(io_error(path))?;
    }
    if !marked {
        // What was read may be in the page cache only.
        file.sync_all().await.map_err(io_error(path))?;
        let mark = format::encode_end_mark(number, end, last);
        file.write_at(end, mark, IoClass::Log).await.map_err(io_error(path))?;
        file.sync_data().await.map_err(io_error(path))?;
    }
    let state = State {
        number,
        file,
        end,
        last,
        base,
        entries: entries.iter().map(|(entry, end)| (entry.id, *end)).collect(),
        failed: None,
    };
    Ok((state, entries.into_iter().map(|(entry, _)| entry).collect()))
}

#[cfg(test)]
mod tests;
