//! The metadata log: the log of the Raft group on this node's disk. It has entries, the vote, the
//! committed index, and the latest snapshot. All bodies are opaque.
//!
//! ```text
//! raft/log-<n>     a header, then records in the order in which they were made;
//!                  a purge begins the next log
//! raft/snapshot    the state after all entries up to some index
//! ```
//!
//! The entries after the last purge are also kept in memory.
//!
//! Files of another node are refused: a node that uses their votes could vote twice.
//!
//! Invariants: data is durable when a call returns `Ok`; a torn tail is cut off at open; damage
//! to durable data is an error. A failed fsync ends the log: every later call fails, and the node
//! must stop. The log must never read a body.
//!
//! After [`RaftLog::reserve`], the log has space on the device beyond its end, even after a purge.
//! So votes and marks can be written on a full disk.

mod end;
mod error;
mod format;
pub(crate) mod record;

pub use end::{FoundLog, LogEnd, NotedEnd, inspect, read_end};
pub use error::RaftLogError;
pub(crate) use error::io_error;

use crate::files::{NodeDigest, is_full, may_pass};
use bytes::Bytes;
use format::{Kind, MAX_BODY, Record, Scan, Tail};
use model::HostId;
use record::Bad;
use rt::fs::{self, File, IoClass, OpenOptions};
use rt::sync::{Deadline, Semaphore};
use rt::time::Duration;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

/// Space is reserved on the device in steps of this many bytes.
const RESERVE: u64 = 1 << 20;
/// A snapshot with a longer body, in bytes, is encoded on a helper thread.
const LONG_BODY: usize = 1 << 20;

/// How long an irreversible operation waits for a descriptor.
const DESCRIPTOR_WAIT: Duration = Duration::from_secs(30);
/// The pause before it is retried.
const DESCRIPTOR_PAUSE: Duration = Duration::from_millis(20);

/// An open metadata log.
pub struct RaftLog {
    dir: PathBuf,
    /// The node that the log belongs to.
    node: NodeDigest,
    /// One write at a time.
    turn: Semaphore,
    state: RefCell<State>,
}

struct State {
    /// Where the next record goes.
    tail: Tail,
    file: File,
    /// The offset up to which space is reserved.
    reserved: u64,
    content: Content,
    failed: Option<String>,
    /// The file with the end of the log.
    end_file: Option<File>,
}

/// The state after all records.
#[derive(Clone, Default)]
struct Content {
    vote: Option<Bytes>,
    committed: Option<u64>,
    /// The last purged index, and its id.
    purged: Option<(u64, Bytes)>,
    /// The index of the first of `entries`.
    first: u64,
    entries: VecDeque<Bytes>,
}

impl Content {
    fn next(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    /// Applies a record, if it fits.
    fn apply(&mut self, record: &Record) -> Result<(), Bad> {
        let index = record.index;
        match record.kind {
            Kind::Entry if self.entries.is_empty() && self.purged.is_none() => {
                self.first = index;
                self.entries.push_back(record.body.clone());
            }
            Kind::Entry if index == self.next() => self.entries.push_back(record.body.clone()),
            Kind::Entry => return Err(Bad::Wrong("an entry does not follow the one before it")),
            Kind::Vote => self.vote = Some(record.body.clone()),
            Kind::Truncated if index < self.first => return Err(Bad::Wrong("purged entries cannot be truncated")),
            Kind::Truncated => self.entries.truncate((index - self.first) as usize),
            Kind::Committed => self.committed = Some(index),
            Kind::Purged if self.entries.is_empty() && self.purged.is_none() => {
                self.purged = Some((index, record.body.clone()));
                self.first = index.checked_add(1).ok_or(Bad::Wrong("an index is out of range"))?;
            }
            Kind::Purged => return Err(Bad::Wrong("the record of purged entries does not come first")),
            Kind::End => {}
        }
        Ok(())
    }

    /// The records that lead to this state.
    fn records(&self) -> Vec<Record> {
        let mut records = Vec::with_capacity(self.entries.len() + 3);
        records.extend(self.purged.iter().map(|(index, id)| Record {
            kind: Kind::Purged,
            index: *index,
            body: id.clone(),
        }));
        records.extend(self.vote.iter().map(|vote| Record { kind: Kind::Vote, index: 0, body: vote.clone() }));
        records.extend((self.first..).zip(&self.entries).map(|(index, body)| entry(index, body)));
        records.extend(self.committed.map(|index| Record { kind: Kind::Committed, index, body: Bytes::new() }));
        records
    }

    /// This state without the entries up to an index.
    fn purged(&self, upto: u64, id: Bytes) -> Content {
        let gone = (upto + 1).saturating_sub(self.first).min(self.entries.len() as u64) as usize;
        let entries = self.entries.iter().skip(gone).cloned().collect();
        Content { purged: Some((upto, id)), first: upto + 1, entries, ..self.clone() }
    }
}

fn entry(index: u64, body: &Bytes) -> Record {
    Record { kind: Kind::Entry, index, body: body.clone() }
}

/// Repeats an operation while the process has no descriptors left, for [`DESCRIPTOR_WAIT`].
async fn with_descriptors<T>(operation: impl AsyncFn() -> io::Result<T>) -> io::Result<T> {
    let until = Deadline::after(DESCRIPTOR_WAIT);
    loop {
        match operation().await {
            Err(error) if sstable::is_out_of_files(&error) && !until.is_past() => {
                rt::time::sleep(DESCRIPTOR_PAUSE).await;
            }
            done => return done,
        }
    }
}

/// The offset up to which space is reserved for a log that ends at `end` and will take `bytes`
/// more.
fn room(end: u64, bytes: u64) -> u64 {
    (end + bytes + RESERVE / 4).next_multiple_of(RESERVE)
}

impl RaftLog {
    /// Whether there is a log in `dir`.
    pub async fn exists(dir: &Path) -> Result<bool, RaftLogError> {
        match fs::read_dir(dir).await {
            Ok(entries) => Ok(entries.iter().any(|entry| number_of(&entry.name).is_some())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(io_error(dir)(error)),
        }
    }

    /// Creates a log of the node `host` in `dir` that begins with a snapshot of the entries up to
    /// `index`, whose id is `id`. A crash leaves either no log or a complete one.
    pub async fn create(
        dir: &Path,
        host: HostId,
        vote: &[u8],
        index: u64,
        id: &[u8],
        snapshot: &[u8],
    ) -> Result<(), RaftLogError> {
        let node = NodeDigest::of(host);
        fs::create_dir_all(dir).await.map_err(io_error(dir))?;
        if let Some(parent) = dir.parent() {
            fs::sync_dir(parent).await.map_err(io_error(parent))?;
        }
        let path = snapshot_path(dir);
        fs::write_durably(&path, &format::encode_snapshot(node, snapshot)).await.map_err(io_error(&path))?;
        let content = Content {
            vote: Some(Bytes::copy_from_slice(vote)),
            committed: Some(index),
            purged: Some((index, Bytes::copy_from_slice(id))),
            first: index + 1,
            entries: VecDeque::new(),
        };
        let (path, bytes) = (log_path(dir, 1), log_bytes(node, 1, &content).0);
        fs::write_durably(&path, &bytes).await.map_err(io_error(&path))
    }

    /// Opens the log of the node `host` in `dir`; creates an empty one if there is none.
    pub async fn open(dir: &Path, host: HostId) -> Result<RaftLog, RaftLogError> {
        let node = NodeDigest::of(host);
        fs::create_dir_all(dir).await.map_err(io_error(dir))?;
        let names = fs::read_dir(dir).await.map_err(io_error(dir))?;
        let number = match names.iter().filter_map(|entry| number_of(&entry.name)).max() {
            Some(number) => number,
            None => {
                if let Some(parent) = dir.parent() {
                    fs::sync_dir(parent).await.map_err(io_error(parent))?;
                }
                let path = log_path(dir, 1);
                let bytes = log_bytes(node, 1, &Content::default()).0;
                fs::write_durably(&path, &bytes).await.map_err(io_error(&path))?;
                1
            }
        };
        let state = read_log(dir, node, number).await?;
        // The rest of an interrupted purge: older logs, temporary files.
        for entry in &names {
            let older = number_of(&entry.name).is_some_and(|other| other != number);
            if older || entry.name.ends_with(".tmp") {
                remove_if_there(&dir.join(&entry.name)).await?;
            }
        }
        fs::sync_dir(dir).await.map_err(io_error(dir))?;
        Ok(RaftLog { dir: dir.to_path_buf(), node, turn: Semaphore::new(1), state: RefCell::new(state) })
    }

    /// The vote.
    pub fn vote(&self) -> Option<Bytes> {
        self.state.borrow().content.vote.clone()
    }

    /// The highest index that is known to be committed.
    pub fn committed(&self) -> Option<u64> {
        self.state.borrow().content.committed
    }

    /// The last purged index, and its id.
    pub fn purged(&self) -> Option<(u64, Bytes)> {
        self.state.borrow().content.purged.clone()
    }

    /// The index and body of the last entry.
    pub fn last(&self) -> Option<(u64, Bytes)> {
        let state = self.state.borrow();
        let last = state.content.entries.back()?;
        Some((state.content.next() - 1, last.clone()))
    }

    /// The existing entries of `from..to`.
    pub fn entries(&self, from: u64, to: u64) -> Vec<Bytes> {
        let state = self.state.borrow();
        let content = &state.content;
        let (from, to) = (from.max(content.first), to.min(content.next()));
        if from >= to {
            return Vec::new();
        }
        content.entries.range((from - content.first) as usize..(to - content.first) as usize).cloned().collect()
    }

    /// Bytes of the entries with an index above `index`.
    pub fn entry_bytes_after(&self, index: u64) -> u64 {
        let state = self.state.borrow();
        let content = &state.content;
        let skipped = (index + 1).saturating_sub(content.first).min(content.entries.len() as u64);
        content.entries.range(skipped as usize..).map(|entry| entry.len() as u64).sum()
    }

    /// The index up to which entries must be purged so that the rest has at most `bytes` bytes.
    /// `None` if the log has no more than that.
    pub fn surplus(&self, bytes: u64) -> Option<u64> {
        let state = self.state.borrow();
        let mut left = bytes;
        for (at, entry) in state.content.entries.iter().enumerate().rev() {
            match left.checked_sub(entry.len() as u64) {
                Some(rest) => left = rest,
                None => return Some(state.content.first + at as u64),
            }
        }
        None
    }

    /// Bytes of the log since the last purge.
    pub fn log_bytes(&self) -> u64 {
        self.state.borrow().tail.at
    }

    /// Appends entries, the first of which has index `from`. Returns when they are durable.
    pub async fn append(&self, from: u64, bodies: &[Bytes]) -> Result<(), RaftLogError> {
        if let Some(body) = bodies.iter().find(|body| body.len() > MAX_BODY) {
            return Err(RaftLogError::TooLarge(body.len()));
        }
        let records: Vec<Record> = (from..).zip(bodies).map(|(index, body)| entry(index, body)).collect();
        self.write(&records).await
    }

    /// Makes `vote` the vote. Returns when it is durable.
    pub async fn save_vote(&self, vote: Bytes) -> Result<(), RaftLogError> {
        self.write(&[Record { kind: Kind::Vote, index: 0, body: vote }]).await
    }

    /// Records that the entries up to `index` are committed. Returns when that is durable.
    pub async fn save_committed(&self, index: u64) -> Result<(), RaftLogError> {
        debug_assert!(self.committed().is_none_or(|before| before <= index), "the committed index does not decrease");
        self.write(&[Record { kind: Kind::Committed, index, body: Bytes::new() }]).await
    }

    /// Removes the entries from `index` on. Returns when that is durable.
    pub async fn truncate(&self, index: u64) -> Result<(), RaftLogError> {
        self.write(&[Record { kind: Kind::Truncated, index, body: Bytes::new() }]).await
    }

    /// Reserves space so that `bytes` of bodies can be appended even on a full disk. After an
    /// error there is no such space, and the log is otherwise unaffected.
    pub async fn reserve(&self, bytes: u64) -> Result<(), RaftLogError> {
        let _turn = self.turn().await?;
        let (file, end, reserved) = {
            let state = self.state.borrow();
            state.check()?;
            (state.file.clone(), state.tail.at, state.reserved)
        };
        if end + bytes + RESERVE / 4 <= reserved {
            return Ok(());
        }
        let reserved = room(end, bytes);
        file.allocate(reserved).await.map_err(io_error(file.path()))?;
        self.state.borrow_mut().reserved = reserved;
        Ok(())
    }

    /// Removes the entries up to `upto`, whose id is `id`. A saved snapshot must contain them. On
    /// a full disk they stay until the next purge.
    pub async fn purge(&self, upto: u64, id: Bytes) -> Result<(), RaftLogError> {
        let _turn = self.turn().await?;
        let (number, content) = {
            let state = self.state.borrow();
            state.check()?;
            if state.content.purged.as_ref().is_some_and(|(index, _)| *index >= upto) {
                return Ok(());
            }
            (state.tail.number, state.content.purged(upto, id))
        };
        let next = number + 1;
        let (bytes, tail) = log_bytes(self.node, next, &content);
        let path = log_path(&self.dir, next);
        // With less room than the log has now, a vote could fail that would succeed now.
        let reserved = room(tail.at, 0);
        let armed = FailOnDrop { log: self, why: Some("a purge was interrupted".into()) };
        let mut written = fs::write_durably_with_room(&path, &bytes, reserved).await;
        if let Err(error) = &written {
            match fs::is_there(&path).await {
                Ok(false) if may_pass(error) => {
                    armed.finish(None);
                    tracing::warn!(file = %path.display(), %error, "the metadata log could not be truncated; retrying later");
                    return Ok(());
                }
                // Everything but the directory is synced: there was no descriptor for it.
                Ok(true) if sstable::is_out_of_files(error) => {
                    written = with_descriptors(async || fs::sync_dir(&self.dir).await).await;
                }
                _ => {}
            }
        }
        if let Err(error) = written {
            // The file may or may not exist, so nothing may be appended to the old log any more.
            armed.finish(Some(format!("a purge could not be written: {error}")));
            return Err(io_error(&path)(error));
        }
        let file = match open_log(&path).await {
            Ok(file) => file,
            Err(error) => {
                armed.finish(Some(format!("the new log cannot be opened: {error}")));
                return Err(error);
            }
        };
        armed.finish(None);
        {
            let mut state = self.state.borrow_mut();
            debug_assert_eq!(state.tail.number, number, "a log is replaced by the next one");
            debug_assert!(state.content.next() <= content.next(), "a purge removes only the beginning");
            (state.tail, state.file, state.reserved, state.content) = (tail, file, reserved, content);
        }
        self.note_end().await;
        remove_if_there(&log_path(&self.dir, number)).await
    }

    /// Saves a snapshot in place of the earlier one. Returns when it is durable. After an error
    /// either of them is there.
    pub async fn save_snapshot(&self, body: &Bytes) -> Result<(), RaftLogError> {
        if body.len() > MAX_BODY {
            return Err(RaftLogError::TooLarge(body.len()));
        }
        let (path, node, body) = (snapshot_path(&self.dir), self.node, body.clone());
        let is_long = body.len() > LONG_BODY;
        let encode = move || format::encode_snapshot(node, &body);
        let bytes = if is_long { rt::offload::run(encode).await } else { encode() };
        let _turn = self.turn().await?;
        self.state.borrow().check()?;
        fs::write_durably_owned(&path, bytes).await.map_err(io_error(&path))
    }

    /// The latest snapshot of the node `host` in `dir`, of a log that is not open.
    pub async fn snapshot_in(dir: &Path, host: HostId) -> Result<Option<Bytes>, RaftLogError> {
        read_snapshot(&snapshot_path(dir), NodeDigest::of(host)).await
    }

    /// The latest snapshot.
    pub async fn snapshot(&self) -> Result<Option<Bytes>, RaftLogError> {
        let _turn = self.turn().await?;
        read_snapshot(&snapshot_path(&self.dir), self.node).await
    }

    /// Writes records durably behind the last, and applies them.
    async fn write(&self, records: &[Record]) -> Result<(), RaftLogError> {
        if records.is_empty() {
            return Ok(());
        }
        let _turn = self.turn().await?;
        let (file, at, bytes, tail, content) = {
            let state = self.state.borrow();
            state.check()?;
            let mut content = state.content.clone();
            for record in records {
                content.apply(record).map_err(|bad| bad.at(state.file.path(), state.tail.at))?;
            }
            let (mut bytes, mut tail, at) = (Vec::new(), state.tail, state.tail.at);
            for record in records {
                tail.encode(&mut bytes, at, record);
            }
            (state.file.clone(), at, bytes, tail, content)
        };
        // Armed until all is durable: after a write that is dropped, the end of the file is
        // unknown.
        let armed = FailOnDrop { log: self, why: Some("a write was interrupted".into()) };
        if let Err(error) = file.write_at(at, bytes, IoClass::Log).await {
            // On a full disk nothing is lost: the written part lies behind the end, and the next
            // record overwrites it.
            let full = is_full(&error);
            armed.finish(if full { None } else { Some(format!("a write failed: {error}")) });
            return Err(io_error(file.path())(error));
        }
        if let Err(error) = file.sync_data().await {
            armed.finish(Some(format!("an fsync failed: {error}")));
            return Err(io_error(file.path())(error));
        }
        if let Err(why) = check_there(file.path()).await {
            armed.finish(Some(why.clone()));
            return Err(RaftLogError::Failed(why));
        }
        {
            let mut state = self.state.borrow_mut();
            debug_assert_eq!(state.tail.at, at, "records are written one after another");
            debug_assert!(tail.at > at, "a record has a length");
            (state.tail, state.content) = (tail, content);
        }
        self.note_end().await;
        // Without the mark, only damage to the last record would not be noticed: the record
        // itself is durable.
        let mut failed = None;
        if let Err(error) = file.write_at(tail.at, tail.end_mark(), IoClass::Log).await {
            tracing::warn!(file = %file.path().display(), %error, "the end of the metadata log could not be marked: damage to its last record would not be detected");
        } else if let Err(error) = file.sync_data().await {
            failed = Some(format!("an fsync failed: {error}"));
        }
        armed.finish(failed);
        Ok(())
    }

    /// Whether its file still has its name. A log without a name is lost when the node ends.
    pub async fn check_there(&self) -> Result<(), RaftLogError> {
        let file = self.state.borrow().file.clone();
        check_there(file.path()).await.map_err(RaftLogError::Failed)
    }

    async fn turn(&self) -> Result<rt::sync::SemaphorePermit<'_>, RaftLogError> {
        self.turn.acquire().await.map_err(|_| RaftLogError::Failed("it was closed".into()))
    }
}

impl State {
    fn check(&self) -> Result<(), RaftLogError> {
        match &self.failed {
            Some(why) => Err(RaftLogError::Failed(why.clone())),
            None => Ok(()),
        }
    }
}

/// Fails the log when it is dropped, unless it was finished.
struct FailOnDrop<'a> {
    log: &'a RaftLog,
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
            self.log.state.borrow_mut().failed = Some(why);
        }
    }
}

/// The path of the log of a number.
pub(crate) fn log_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(format!("log-{number}"))
}

fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix("log-")?.parse().ok()
}

async fn check_there(path: &Path) -> Result<(), String> {
    match fs::metadata(path).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(format!(
            "{} was removed while the node ran: its contents are lost (docs/faults.md, \"The metadata log is lost\")",
            path.display()
        )),
        _ => Ok(()),
    }
}

fn snapshot_path(dir: &Path) -> PathBuf {
    dir.join("snapshot")
}

async fn remove_if_there(path: &Path) -> Result<(), RaftLogError> {
    match fs::remove_file(path).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error(path)(error)),
        _ => Ok(()),
    }
}

async fn read_snapshot(path: &Path, node: NodeDigest) -> Result<Option<Bytes>, RaftLogError> {
    let bytes = match with_descriptors(async || fs::read(path).await).await {
        Ok(bytes) => Bytes::from(bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io_error(path)(error)),
    };
    format::decode_snapshot(&bytes, node).map(Some).map_err(|bad| bad.at(path, 0))
}

/// The bytes of a complete log, and the position behind its last record.
fn log_bytes(node: NodeDigest, number: u64, content: &Content) -> (Vec<u8>, Tail) {
    let (mut bytes, mut tail) = (format::log_header(node, number), Tail::first(number));
    for record in content.records() {
        // The file becomes durable at once: any damaged part of it was durable.
        tail.encode(&mut bytes, 0, &record);
    }
    bytes.extend_from_slice(&tail.end_mark());
    (bytes, tail)
}

async fn open_log(path: &Path) -> Result<File, RaftLogError> {
    let options = OpenOptions { read: true, write: true, ..OpenOptions::default() };
    with_descriptors(async || fs::open(path, &options).await).await.map_err(io_error(path))
}

async fn read_log(dir: &Path, node: NodeDigest, number: u64) -> Result<State, RaftLogError> {
    let path = log_path(dir, number);
    let file = open_log(&path).await?;
    let bytes = Bytes::from(fs::read(&path).await.map_err(io_error(&path))?);
    format::check_log_header(&bytes, node, number).map_err(|bad| bad.at(&path, 0))?;
    let Scan { records, tail, bad, was_durable, marked } = format::scan(&bytes, number);
    let end = tail.at;
    if let Some(bad) = bad
        && was_durable
    {
        return Err(bad.at(&path, end));
    }
    let mut content = Content::default();
    for (record, at) in &records {
        content.apply(record).map_err(|bad| bad.at(&path, *at))?;
    }
    let mark = tail.end_mark();
    if !marked || bytes.len() as u64 != end + mark.len() as u64 {
        if !marked && end < bytes.len() as u64 {
            let torn = bytes.len() as u64 - end;
            tracing::warn!(file = %path.display(), at = end, bytes = torn, "removing the torn end of the metadata log");
        }
        // Bytes that a failed write left behind the end must never be read as a record.
        file.set_len(end).await.map_err(io_error(&path))?;
        // The bytes that were read may be in the page cache only.
        file.sync_all().await.map_err(io_error(&path))?;
        file.write_at(end, mark, IoClass::Log).await.map_err(io_error(&path))?;
        file.sync_data().await.map_err(io_error(&path))?;
    }
    Ok(State { tail, file, reserved: 0, content, failed: None, end_file: None })
}

#[cfg(test)]
mod tests;
