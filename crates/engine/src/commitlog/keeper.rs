//! The task that creates segments before they are needed and removes free ones; the beginning and
//! the end of a run.
//!
//! Only this task writes the manifest (and `end_run`, after the task has ended). A segment is
//! created durably before the manifest names it, and named before it is used. The manifest drops
//! a segment before its file is reused or removed. If the disk is too full for a new manifest, a
//! segment is renamed to `freed-<id>` and emptied instead. Replay treats it as dropped.

use super::config::CommitlogConfig;
use super::error::LogError;
use super::format::{SEGMENT_HEADER, SegmentHeader};
use super::log::Commitlog;
use super::manifest::{Manifest, segment_path};
use super::metrics::add;
use super::position::{Position, segment_id, sequence_of};
use super::runs;
use super::state::Segment;
use super::synced::SyncedFile;
use crate::files::{NodeDigest, is_full, may_pass};
use rt::fs::{self, File, IoClass, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

/// The length of the first segment of a run if the disk has no room for a larger one in addition to
/// the reserve. Writes are refused until a second segment can be created, but the log is open, and
/// the node serves reads.
const SHORTEST_SEGMENT: u32 = 4096;

/// How long to wait before an operation without disk space is retried.
const SPACE_RETRY: Duration = Duration::from_secs(1);

/// A run that was begun.
pub(super) struct Begun {
    pub run_dir: PathBuf,
    pub first: Rc<Segment>,
    pub synced_file: SyncedFile,
}

/// Makes the directory of a new run, its manifest and its first segment.
pub(super) async fn begin_run(config: &CommitlogConfig) -> Result<Begun, LogError> {
    let dir = &config.dir;
    // Sstables store offsets as 32-bit signed numbers.
    if !(4096..=1 << 30).contains(&config.segment_size) {
        return Err(LogError::SegmentSize(config.segment_size));
    }
    fs::create_dir_all(dir).await.map_err(LogError::io(dir))?;
    if let Some(parent) = dir.parent() {
        fs::sync_dir(parent).await.map_err(LogError::io(parent))?;
    }
    // The clock gives a lower bound, so that ids stay unique after the directory was emptied:
    // sstables contain positions.
    let clock = (rt::time::wall_micros() / 1000).max(1) as u64;
    let last = runs::highest_sequence(dir).await?;
    let first = segment_id(config.shard, clock.max(last + 1));
    let run_dir = runs::run_dir(dir, first);
    fs::create_dir_all(&run_dir).await.map_err(LogError::io(&run_dir))?;
    let start = Position { segment: first, offset: SEGMENT_HEADER };
    let mut manifest = Manifest { run: first, segments: Vec::new(), synced: start, closed: false, host: config.host };
    // The manifest comes first: segments without one are reported as a loss.
    manifest.write(&run_dir).await.map_err(LogError::io(&run_dir))?;
    fs::sync_dir(dir).await.map_err(LogError::io(dir))?;
    let synced_file = SyncedFile::create(&run_dir, first, config.host, start).await.map_err(LogError::io(&run_dir))?;
    let has_room = has_room(config).await;
    let made = async {
        has_room?;
        make_segment(config, config.segment_size, &run_dir, first).await
    };
    let segment = match made.await {
        Err(error) if is_full(&error) => {
            tracing::error!(
                shard = config.shard.0,
                dir = %run_dir.display(),
                needed_bytes = config.segment_size,
                "no disk space for a commitlog segment; reads are served, writes are refused until there is space"
            );
            make_segment(config, SHORTEST_SEGMENT, &run_dir, first).await
        }
        other => other,
    };
    let segment = segment.map_err(LogError::io(&run_dir))?;
    manifest.segments.push(first);
    manifest.write(&run_dir).await.map_err(LogError::io(&run_dir))?;
    Ok(Begun { run_dir, first: segment, synced_file })
}

/// An error of a full disk, if there is no room for a segment in addition to the reserved space.
async fn has_room(config: &CommitlogConfig) -> io::Result<()> {
    let Some(reserve) = &config.reserve else { return Ok(()) };
    let needed = u64::from(config.segment_size).saturating_add(reserve.missing().await);
    match fs::disk_space(&config.dir).await {
        Ok((_, free)) if free < needed => Err(io::Error::from(io::ErrorKind::StorageFull)),
        // The free space is unknown: the file system returns an error if it is too little.
        _ => Ok(()),
    }
}

/// Creates the first segment of a run durably.
async fn make_segment(config: &CommitlogConfig, size: u32, run_dir: &Path, run: u64) -> io::Result<Rc<Segment>> {
    let file = create_file(&segment_path(run_dir, run), size).await?;
    begin_segment(config, size, run_dir, (run, run), file).await
}

/// Creates a file with the space for a segment. After an error there is none.
async fn create_file(path: &Path, size: u32) -> io::Result<File> {
    let options = OpenOptions { read: true, write: true, create: true, truncate: true, ..OpenOptions::default() };
    let file = fs::open(path, &options).await?;
    let space = async {
        file.allocate(size.into()).await?;
        file.set_len(size.into()).await
    };
    if let Err(error) = space.await {
        drop(file);
        fs::remove_file(path).await?;
        return Err(error);
    }
    Ok(file)
}

/// Makes the file of a segment a durable segment. The ids are of the run and of the segment.
async fn begin_segment(
    config: &CommitlogConfig,
    size: u32,
    run_dir: &Path,
    (run, id): (u64, u64),
    file: File,
) -> io::Result<Rc<Segment>> {
    let node = config.host.map_or(0, |host| NodeDigest::of(host).long());
    let header = SegmentHeader { segment: id, run, size, created_micros: rt::time::wall_micros(), node };
    file.write_at(0, header.encode().to_vec(), IoClass::Log).await?;
    file.sync_all().await?;
    fs::sync_dir(run_dir).await?;
    Ok(Rc::new(Segment { id, size, file }))
}

/// The state of the keeper alone.
struct SegmentKeeper {
    log: Rc<Commitlog>,
    /// The first segment if it is shorter than others, and so cannot be reused; 0 otherwise.
    short: u64,
    last_id: u64,
    spares: Vec<PathBuf>,
    /// The file of the next segment has its name and its space: an attempt to make the segment
    /// failed after that.
    has_file: bool,
    /// A segment that was created, but the manifest could not be written to name it.
    unnamed: Option<Rc<Segment>>,
    /// Free segments that the manifest still names.
    free: Vec<u64>,
}

/// The keeper's task.
pub(super) async fn keep(log: Rc<Commitlog>) {
    let short = {
        let first = &log.state.borrow().active;
        if first.size < log.config.segment_size { first.id } else { 0 }
    };
    let (last_id, spares, free) = (log.run, Vec::new(), Vec::new());
    let mut keeper = SegmentKeeper { short, last_id, spares, has_file: false, unnamed: None, free, log };
    loop {
        let result = keeper.turn().await;
        let log = &keeper.log;
        if log.state.borrow().failed.is_some() || log.state.borrow().closing {
            break;
        }
        if result.is_ok() {
            has_space(log);
        }
        match result {
            Ok(true) => {}
            Ok(false) => log.signals.keep.notified().await,
            Err(error) if may_pass(&error) => {
                let before = std::mem::replace(&mut log.state.borrow_mut().no_space_for_segment, true);
                if !before {
                    tracing::error!(
                        shard = log.config.shard.0,
                        needed_bytes = log.config.segment_size,
                        dir = %log.run_dir.display(),
                        %error,
                        "no disk space for another commitlog segment: this shard refuses writes until there is. Free \
                         space on this disk"
                    );
                    log.signals.pressure.notify_one();
                    log.signals.room.notify_waiters();
                }
                let _ = rt::time::timeout(SPACE_RETRY, log.signals.keep.notified()).await;
            }
            Err(error) => {
                // Missing files of the run are the likely reason.
                if log.check_there().await.is_none() {
                    log.fail(&format!("a segment could not be made or removed in {}: {error}", log.run_dir.display()));
                }
                break;
            }
        }
    }
    // The rest is removed at the end of the run.
    let log = keeper.log;
    log.counters.segment_files.set(log.counters.segment_files.get() - keeper.spares.len() as u64);
    for spare in keeper.spares {
        if let Err(error) = fs::remove_file(&spare).await {
            tracing::warn!(file = %spare.display(), %error, "a spare commitlog segment could not be removed");
        }
    }
}

/// Records that nothing fails for lack of space any more: appends wait again for the next segment.
fn has_space(log: &Commitlog) {
    if std::mem::replace(&mut log.state.borrow_mut().no_space_for_segment, false) {
        tracing::info!(shard = log.config.shard.0, "the commitlog has space again: writes are accepted");
    }
}

impl SegmentKeeper {
    /// Does one round of work. False if there was nothing to do.
    async fn turn(&mut self) -> io::Result<bool> {
        let log = self.log.clone();
        self.free.append(&mut log.state.borrow_mut().ledger.take_free());
        let freed = !self.free.is_empty();
        if freed {
            self.forget_free().await?;
            log.signals.room.notify_waiters();
        }
        let wanted = {
            let state = log.state.borrow();
            state.next.is_none() && !state.closing && state.failed.is_none()
        };
        if !wanted {
            return Ok(freed);
        }
        if log.state.borrow().ledger.len() + 1 > log.config.max_segments() {
            log.signals.pressure.notify_one();
            return Ok(freed);
        }
        self.make_next().await?;
        Ok(true)
    }

    fn manifest(&self, further: Option<u64>) -> Manifest {
        let state = self.log.state.borrow();
        let next = state.next.as_ref().map(|next| next.id);
        let segments: Vec<u64> = state.ledger.ids().chain(next).chain(further).collect();
        debug_assert!(segments.is_sorted_by(|a, b| a < b), "a manifest names each segment once, in order");
        debug_assert!(
            !self.free.iter().any(|id| segments.contains(id)),
            "a free segment holds no record that is needed"
        );
        Manifest { run: self.log.run, segments, synced: state.synced, closed: false, host: self.log.config.host }
    }

    async fn make_next(&mut self) -> io::Result<()> {
        let log = self.log.clone();
        let segment = match self.unnamed.take() {
            Some(segment) => segment,
            None => self.make_one().await?,
        };
        let id = segment.id;
        if let Err(error) = self.manifest(Some(id)).write(&log.run_dir).await {
            // The manifest may name it nevertheless: the failure may have come after the new
            // contents were in place. So it stays.
            self.unnamed = Some(segment);
            return Err(error);
        }
        self.last_id = id;
        let mut state = log.state.borrow_mut();
        debug_assert!(state.next.is_none(), "a segment that is ready is used first");
        debug_assert!(state.active.id < id, "segments are used in the order of their ids");
        state.next = Some(segment);
        drop(state);
        has_space(&log);
        log.signals.room.notify_waiters();
        Ok(())
    }

    /// Creates the segment after the last one.
    async fn make_one(&mut self) -> io::Result<Rc<Segment>> {
        let log = self.log.clone();
        let id = segment_id(log.config.shard, sequence_of(self.last_id) + 1);
        add(&log.counters.allocating, 1);
        let made = async {
            let file = self.next_file(&segment_path(&log.run_dir, id)).await?;
            begin_segment(&log.config, log.config.segment_size, &log.run_dir, (log.run, id), file).await
        };
        let made = made.await;
        log.counters.allocating.set(log.counters.allocating.get() - 1);
        let segment = made?;
        self.has_file = false;
        Ok(segment)
    }

    /// Opens the file of the next segment, which is to be at `path`: the file of an earlier
    /// attempt, a spare one or a new one.
    async fn next_file(&mut self, path: &Path) -> io::Result<File> {
        let log = self.log.clone();
        if !self.has_file
            && let Some(spare) = self.spares.last()
        {
            fs::rename(spare, path).await?;
            self.spares.pop();
            self.has_file = true;
        }
        if self.has_file {
            return fs::open(path, &OpenOptions { read: true, write: true, ..OpenOptions::default() }).await;
        }
        has_room(&log.config).await?;
        let file = create_file(path, log.config.segment_size).await?;
        self.has_file = true;
        add(&log.counters.segment_files, 1);
        Ok(file)
    }

    fn spare_path(&self, id: u64) -> PathBuf {
        self.log.run_dir.join(format!("spare-{id:016x}"))
    }

    /// Removes the free segments from the manifest, then from the disk.
    async fn forget_free(&mut self) -> io::Result<()> {
        let log = self.log.clone();
        match self.manifest(None).write(&log.run_dir).await {
            Ok(()) => {}
            Err(error) if is_full(&error) => {
                for &id in &self.free {
                    empty_segment(&log.run_dir, id).await?;
                }
                return Err(error);
            }
            Err(error) => return Err(error),
        }
        while let Some(&id) = self.free.first() {
            self.remove_free(id).await?;
            self.free.remove(0);
        }
        Ok(())
    }

    /// Removes the file of a free segment that the manifest does not name any more, or keeps it as
    /// a spare one.
    async fn remove_free(&mut self, id: u64) -> io::Result<()> {
        let log = self.log.clone();
        let (path, freed) = (segment_path(&log.run_dir, id), freed_path(&log.run_dir, id));
        if fs::is_there(&freed).await? {
            fs::remove_file(&freed).await?;
        } else if self.spares.len() < log.config.spare_segments && id != self.short {
            let spare = self.spare_path(id);
            fs::rename(&path, &spare).await?;
            self.spares.push(spare);
            return Ok(());
        } else {
            fs::remove_file(&path).await?;
        }
        log.counters.segment_files.set(log.counters.segment_files.get() - 1);
        Ok(())
    }
}

/// The file name of a segment that is free although the manifest names it.
pub(super) fn freed_path(run_dir: &Path, id: u64) -> PathBuf {
    run_dir.join(format!("freed-{id:016x}"))
}

/// Frees a segment's space without writing anything new. May be called again after an error.
async fn empty_segment(run_dir: &Path, id: u64) -> io::Result<()> {
    let freed = freed_path(run_dir, id);
    match fs::metadata(&freed).await {
        Ok(found) if found.len == 0 => return Ok(()),
        Ok(_) => {}
        Err(error) if fs::is_absence(&error) => fs::rename(&segment_path(run_dir, id), &freed).await?,
        Err(error) => return Err(error),
    }
    fs::sync_dir(run_dir).await?;
    fs::open(&freed, &OpenOptions { write: true, ..OpenOptions::default() }).await?.set_len(0).await
}

/// Writes the last manifest of a run and removes all files that replay does not need.
pub(super) async fn end_run(log: &Commitlog, end: Position) -> Result<(), LogError> {
    let run_dir = &log.run_dir;
    let (segments, next) = {
        let mut state = log.state.borrow_mut();
        state.ledger.take_free();
        debug_assert!(state.synced >= end && state.buffered == 0, "a run that ends is durable");
        (state.ledger.ids().collect::<Vec<_>>(), state.next.take())
    };
    drop(next);
    let manifest = Manifest { run: log.run, segments, synced: end, closed: true, host: log.config.host };
    manifest.write(run_dir).await.map_err(LogError::io(run_dir))?;
    let mut files = 0;
    for entry in fs::read_dir(run_dir).await.map_err(LogError::io(run_dir))? {
        if runs::is_needed(&manifest, &entry.name) {
            files += u64::from(entry.name != super::manifest::NAME);
            continue;
        }
        let path = run_dir.join(&entry.name);
        fs::remove_file(&path).await.map_err(LogError::io(&path))?;
    }
    log.counters.segment_files.set(files);
    fs::sync_dir(run_dir).await.map_err(LogError::io(run_dir))
}
