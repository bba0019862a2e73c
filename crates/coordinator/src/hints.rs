//! Hints: writes that a replica missed, kept on disk until the replica accepts them.
//!
//! Each shard keeps its own hints, in a directory for each target. The files are append-only
//! ([`format`]) and have at most [`HintsConfig::file_bytes`]. A hint is stored once the kernel has
//! it, and is synced with the others within [`HintsConfig::period`]. So a crash of the node loses
//! no hint, and a power loss at most the hints of the last period.
//!
//! Hints are bounded in size and age. A write beyond these bounds gets no hint. Read repair or a
//! resync delivers it. Replay reads the oldest file first. A file is removed once all its hints
//! were delivered or discarded. [`replay_outcome`] decides what to do with a hint at replay.
//!
//! `missed` records which nodes miss writes that hint replay will not deliver, and `manifest` which
//! hint files must exist. Both lie outside of the hint directory ([`HintsConfig::notes`]), so
//! removed hint files are detected. `witness` has a second record of these notes and their nodes,
//! so removed notes are detected, too. This module does not know how hints are sent.

pub mod format;
mod handed_over;
mod hint_log;
mod manifest;
mod missed;
mod owner;
pub mod replay_outcome;
mod reserved_notes;
mod sealed;
mod settings;
mod storing;
mod witness;

pub use missed::{Cause, MissedWrites, NotRecorded, note_accepted_loss};
pub use owner::claim_directory;
pub use settings::{HintsConfig, HintsSettings, KeptFor};
pub use witness::{Store, Stored, Witnessed, WitnessedNotes};

use format::Hint;
use hint_log::{HintLog, is_of_process};
use manifest::Manifest;
use missed::{Missed, missed_name, missed_path, reserve_path};
use model::id::{HostId, TableId};
use model::mutation::Mutation;
use rt::time::Duration;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use storing::Storing;
use uuid::Uuid;
use witness::{Lost, Witness, files_name, number_of};

/// Why a hint was not stored.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The target has been down for too long.
    #[error("the node has been down for longer than max_hint_window_in_ms")]
    TooLongDown,
    /// The hints have reached the limit of their disk space.
    #[error("the hints have reached the limit of their disk space")]
    Full,
    /// The disk failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The disk failed, also to record that the node misses the write.
    #[error("{0}")]
    NotRecorded(#[from] NotRecorded),
}

/// Counts of hints, by outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HintsMetrics {
    /// Stored.
    pub written: u64,
    /// Not stored, for any reason.
    pub refused: u64,
    /// Delivered.
    pub sent: u64,
    /// Discarded: too old, of a table that was dropped, or refused by the replica.
    pub dropped: u64,
    /// Not readable.
    pub corrupted: u64,
    /// Bytes on disk.
    pub bytes: u64,
}

/// The result of sending a hint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivered {
    /// The replica has the write.
    Sent,
    /// The hint is not needed any more.
    Dropped,
    /// The table exists, but the hint is too old to be sent: the target misses the write.
    Expired(TableId),
    /// A replica refuses the write permanently, and the missed write was noted.
    Refused,
    /// The hint cannot be delivered now: keep it.
    NotYet,
}

/// A file that is shorter than recorded: its manifest, its number and its length in bytes.
type Shorter = (Rc<Manifest>, u64, u64);

/// The number of hints that are sent at the same time.
const AT_ONCE: usize = 128;

/// The hints of one shard.
pub struct Hints {
    config: HintsConfig,
    shard: u16,
    settings: RefCell<Rc<HintsSettings>>,
    /// The manifests of this shard's directory, and of the directories that it took over.
    manifests: Rc<RefCell<BTreeMap<u16, Rc<Manifest>>>>,
    logs: RefCell<BTreeMap<HostId, Rc<HintLog>>>,
    bytes: Rc<Cell<u64>>,
    storing: Storing,
    metrics: Cell<HintsMetrics>,
    replaying: Cell<bool>,
    missed: Rc<Missed>,
    witness: Rc<Witness>,
}

impl Hints {
    /// Like [`Hints::open_witnessed`], without a second record of the notes.
    pub async fn open(config: HintsConfig, shard: u16, shards: u16) -> io::Result<Rc<Hints>> {
        Hints::open_with(config, shard, shards, Witnessed::new(), None).await
    }

    /// Opens the hints of shard `shard` of `shards`, and takes over the hints of removed shards.
    /// Missing hint files are noted as missed writes. If notes are missing, the nodes in their
    /// second record (`known`) are noted, too. `store` changes the second record.
    pub async fn open_witnessed(
        config: HintsConfig,
        shard: u16,
        shards: u16,
        known: Witnessed,
        store: Store,
    ) -> io::Result<Rc<Hints>> {
        Hints::open_with(config, shard, shards, known, Some(store)).await
    }

    async fn open_with(
        config: HintsConfig,
        shard: u16,
        shards: u16,
        mut known: Witnessed,
        store: Option<Store>,
    ) -> io::Result<Rc<Hints>> {
        let own = config.directory.join(shard.to_string());
        rt::fs::create_dir_all(&own).await?;
        rt::fs::create_dir_all(&config.notes).await?;
        // A power loss must not lose a directory with recorded files.
        rt::fs::sync_dir(&config.directory).await?;
        for parent in [&config.directory, &config.notes].into_iter().filter_map(|made| made.parent()) {
            let _ = rt::fs::sync_dir(parent).await; // some system directories cannot be opened
        }
        let (manifests, missed) = (Rc::default(), Rc::new(new_missed(&config.notes, shard)));
        known.retain(|name, _| number_of(name).is_some_and(|number| number % shards.max(1) == shard));
        let hints = Hints {
            settings: RefCell::new(Rc::new(config.settings.clone())),
            witness: Rc::new(Witness::new(store, known.clone(), Rc::clone(&manifests), missed.clone())),
            missed,
            manifests,
            config,
            shard,
            logs: RefCell::default(),
            bytes: Rc::default(),
            storing: Storing::default(),
            metrics: Cell::default(),
            replaying: Cell::new(false),
        };
        let mut numbers = hints.directories(shard, shards).await?;
        numbers.extend(known.keys().filter_map(|name| number_of(name)));
        let mut lost = Vec::new();
        for number in &numbers {
            let name = files_name(*number);
            let manifest = Manifest::open(hints.config.notes.join(&name), hints.witness.sequence(&name)).await?;
            lost.extend(hints.witness.lost(name, manifest.lost()));
            hints.manifests.borrow_mut().insert(*number, Rc::new(manifest));
        }
        let others = hints.take_over_notes(shard, &numbers, &mut lost).await?;
        hints.missed.reserve().await;
        hints.note_lost(lost).await;
        let mut missing: BTreeMap<HostId, Vec<(Rc<Manifest>, u64)>> = BTreeMap::new();
        let mut shorter: BTreeMap<HostId, Vec<Shorter>> = BTreeMap::new();
        for number in numbers {
            let Some(manifest) = hints.manifests.borrow().get(&number).cloned() else { continue };
            let directory = hints.config.directory.join(number.to_string());
            let mut targets: BTreeSet<HostId> = manifest.targets().into_iter().collect();
            let there = names_in(&directory).await?;
            targets.extend(there.iter().filter_map(|name| Uuid::parse_str(name).ok()).map(HostId));
            for target in targets {
                let adopted = hints.log(target).adopt(&directory.join(target.to_string()), &manifest).await?;
                if !adopted.missing.is_empty() {
                    let files = adopted.missing.into_iter().map(|number| (manifest.clone(), number));
                    missing.entry(target).or_default().extend(files);
                }
                if !adopted.shorter.is_empty() {
                    let files = adopted.shorter.into_iter().map(|(number, bytes)| (manifest.clone(), number, bytes));
                    shorter.entry(target).or_default().extend(files);
                }
            }
        }
        hints.note_missing(missing).await;
        hints.note_shorter(shorter).await;
        hints.missed.write().await;
        hints.write_manifests().await;
        if hints.witness.record().await && hints.missed.is_written() {
            for path in others {
                rt::fs::remove_file(&path).await?;
            }
        }
        Ok(Rc::new(hints))
    }

    /// The numbers of the shards with hints and notes that belong to this shard, itself included.
    async fn directories(&self, shard: u16, shards: u16) -> io::Result<BTreeSet<u16>> {
        let hints = names_in(&self.config.directory).await?;
        let notes = names_in(&self.config.notes).await?;
        let notes = notes.iter().filter_map(|name| number_of(name));
        let numbers = hints.iter().filter_map(|name| name.parse::<u16>().ok()).chain(notes);
        Ok(numbers.filter(|number| number % shards.max(1) == shard).chain([shard]).collect())
    }

    /// Takes over the missed writes of removed shards. Returns the files that can be removed once
    /// all is on disk. Adds to `lost`.
    async fn take_over_notes(
        &self,
        shard: u16,
        numbers: &BTreeSet<u16>,
        lost: &mut Vec<Lost>,
    ) -> io::Result<Vec<PathBuf>> {
        let notes = &self.config.notes;
        let (own, own_reserve) = (missed_path(notes, shard), reserve_path(notes, shard));
        let mut others = Vec::new();
        for number in numbers {
            let path = missed_path(&self.config.notes, *number);
            let name = missed_name(*number);
            let reserve = reserve_path(&self.config.notes, *number);
            let why = self.missed.adopt(&path, &reserve, self.witness.sequence(&name)).await?;
            lost.extend(self.witness.lost(name, why));
            for path in [path, reserve] {
                if ![&own, &own_reserve].contains(&&path) && rt::fs::is_there(&path).await? {
                    others.push(path);
                }
            }
        }
        if !others.is_empty() {
            self.missed.changed().await;
        }
        Ok(others)
    }

    /// Notes that nodes may miss writes because notes were lost.
    async fn note_lost(&self, lost: Vec<Lost>) {
        for Lost { name, why, nodes } in lost {
            let file = self.config.notes.join(name);
            tracing::warn!(
                file = %file.display(), nodes = nodes.len(),
                "a file of hint-notes {why}: the nodes that it listed may miss writes. For each node that `messina admin status` \
                 shows, run `messina admin resync NODE`"
            );
            self.count(|metrics| metrics.corrupted += 1);
            for (target, since) in nodes {
                // An error is logged, and the next sync retries.
                let _ = self.missed.note_since(target, None, Cause::NotesLost, since).await;
            }
        }
    }

    /// Notes that the targets miss the writes in these files, then removes the files from their
    /// manifests.
    async fn note_missing(&self, missing: BTreeMap<HostId, Vec<(Rc<Manifest>, u64)>>) {
        for (target, files) in missing {
            tracing::error!(
                node = %target, files = files.len(), dir = %self.config.directory.display(),
                "files of hints are missing: the node lacks the writes in them. Restore the files and start again; or run \
                 `messina admin resync {target}`"
            );
            self.count(|metrics| metrics.corrupted += files.len() as u64);
            if self.missed.note(target, None, Cause::Damaged).await.is_ok() {
                files.iter().for_each(|(manifest, number)| manifest.unlist(target, *number));
            }
        }
    }

    /// Notes that the targets miss the writes at the ends of these files, then lowers the recorded
    /// lengths.
    async fn note_shorter(&self, shorter: BTreeMap<HostId, Vec<Shorter>>) {
        for (target, files) in shorter {
            tracing::error!(
                node = %target, files = files.len(), dir = %self.config.directory.display(),
                "files of hints are shorter than recorded: the node lacks the writes at their ends. Restore \
                 the files and start again; or run `messina admin resync {target}`"
            );
            self.count(|metrics| metrics.corrupted += files.len() as u64);
            if self.missed.note(target, None, Cause::Damaged).await.is_ok() {
                files.iter().for_each(|(manifest, number, bytes)| manifest.measure(target, *number, *bytes));
            }
        }
    }

    /// Writes the manifests to disk. After an error the next [`Hints::sync`] retries.
    async fn write_manifests(&self) {
        let manifests: Vec<Rc<Manifest>> = self.manifests.borrow().values().cloned().collect();
        for manifest in manifests {
            if let Err(error) = manifest.write().await {
                tracing::debug!(%error, "the manifest of hints cannot be written; retrying");
            }
        }
    }

    /// Notes that a node misses a write, and updates the second record.
    async fn note(&self, target: HostId, table: Option<TableId>, cause: Cause) -> Result<(), NotRecorded> {
        self.missed.note(target, table, cause).await?;
        self.witness.record_missed().await;
        Ok(())
    }

    /// Applies new settings.
    pub fn set(&self, settings: HintsSettings) {
        self.settings.replace(Rc::new(settings));
    }

    /// Whether hints are kept for the nodes of a datacenter.
    pub fn are_kept_for(&self, datacenter: Option<&str>) -> bool {
        match &self.settings.borrow().kept_for {
            KeptFor::All => true,
            KeptFor::NoNode => false,
            KeptFor::Datacenters(names) => datacenter.is_some_and(|own| names.iter().any(|name| name == own)),
        }
    }

    /// Whether a write gets a hint for a node of this datacenter that has been down for this long.
    pub fn would_store(&self, datacenter: Option<&str>, down_for: Option<Duration>) -> bool {
        self.are_kept_for(datacenter) && !self.is_window_over(down_for)
    }

    fn is_window_over(&self, down_for: Option<Duration>) -> bool {
        down_for.is_some_and(|time| time > self.settings.borrow().window)
    }

    fn log(&self, target: HostId) -> Rc<HintLog> {
        let own = self.config.directory.join(self.shard.to_string());
        let manifest =
            || self.manifests.borrow().get(&self.shard).cloned().expect("the shard's own manifest is opened first");
        let notes = || (self.shard, manifest(), self.witness.clone(), self.missed.clone());
        let fresh = || Rc::new(HintLog::new(own.join(target.to_string()), notes(), target, self.bytes.clone()));
        self.logs.borrow_mut().entry(target).or_insert_with(fresh).clone()
    }

    /// Stores a hint for a node. If this fails, the node is noted as missing the write. If this
    /// fails as well ([`Refused::NotRecorded`]), the write must not be acknowledged. `number` is
    /// the number of the metadata that routed the write. `down_for` is how long the node has been
    /// down, if it is down.
    pub async fn store(
        &self,
        target: HostId,
        mutation: &Mutation,
        number: u64,
        down_for: Option<Duration>,
    ) -> Result<(), Refused> {
        let _storing = self.storing.begin(mutation.as_bytes().len() as u64);
        let stored = self.try_store(target, mutation, number, down_for).await;
        self.count(|metrics| match &stored {
            Ok(()) => metrics.written += 1,
            Err(_) => metrics.refused += 1,
        });
        let cause = match &stored {
            Ok(()) => return stored,
            Err(Refused::TooLongDown) => Cause::WindowOver,
            Err(Refused::Full) => Cause::Full,
            Err(Refused::Io(_) | Refused::NotRecorded(_)) => Cause::NotWritten,
        };
        self.note(target, Some(mutation.table()), cause).await?;
        stored
    }

    async fn try_store(
        &self,
        target: HostId,
        mutation: &Mutation,
        number: u64,
        down_for: Option<Duration>,
    ) -> Result<(), Refused> {
        if self.is_window_over(down_for) {
            return Err(Refused::TooLongDown);
        }
        self.append(target, &Hint { written: rt::time::wall_micros(), number, mutation: mutation.clone() }).await
    }

    fn count(&self, change: impl FnOnce(&mut HintsMetrics)) {
        let mut metrics = self.metrics.get();
        change(&mut metrics);
        self.metrics.set(metrics);
    }

    /// The counts so far.
    pub fn metrics(&self) -> HintsMetrics {
        HintsMetrics { bytes: self.bytes.get(), ..self.metrics.get() }
    }

    /// The nodes that miss writes which hint replay will not deliver.
    pub fn missed(&self) -> Vec<MissedWrites> {
        self.missed.list()
    }

    /// The nodes whose missed writes could not be recorded on disk. A restart loses these records.
    pub fn unrecorded(&self) -> BTreeSet<HostId> {
        self.missed.unwritten()
    }

    /// Notes that a node misses a write that hint replay will not deliver. The note is durable when
    /// this returns `Ok`. After an error the write must not be acknowledged.
    pub async fn note_missed(&self, target: HostId, table: TableId, cause: Cause) -> Result<(), NotRecorded> {
        self.note(target, Some(table), cause).await
    }

    /// Removes the entries of a node that were noted last at `by` or before. None for `tables`
    /// means all.
    pub async fn forget_missed(&self, target: HostId, tables: Option<&[Option<TableId>]>, by: i64) {
        self.missed.forget(target, tables, by).await;
        self.witness.record_missed().await;
    }

    /// Removes the entries for dropped tables. `is_there`: whether the metadata has a table.
    pub async fn forget_dropped(&self, is_there: impl Fn(TableId) -> bool) {
        self.missed.forget_dropped(is_there).await;
        self.witness.record_missed().await;
    }

    /// Marks the entries of a node. An entry that is noted again loses its mark.
    pub fn mark_missed(&self, target: HostId, mark: Uuid) {
        self.missed.mark(target, mark);
    }

    /// Removes the entries of a node for these tables that have this mark.
    pub async fn forget_marked(&self, target: HostId, tables: &[Option<TableId>], mark: Uuid) {
        self.missed.forget_marked(target, tables, mark).await;
        self.witness.record_missed().await;
    }

    /// Bytes of hints for a node that are not delivered yet.
    pub fn pending(&self, target: HostId) -> u64 {
        self.logs.borrow().get(&target).map_or(0, |log| log.pending())
    }

    /// Whether too many hints are being stored, so that writes which need a hint must be refused:
    /// the disk stalls.
    pub fn is_full(&self) -> bool {
        self.storing.is_full()
    }

    /// The nodes that have hints.
    pub fn targets(&self) -> Vec<HostId> {
        let logs = self.logs.borrow();
        logs.iter().filter(|(_, log)| !log.is_empty()).map(|(target, _)| *target).collect()
    }

    /// How often to call [`Hints::sync`] and [`Hints::replay`].
    pub fn period(&self) -> Duration {
        self.config.period
    }

    /// Syncs all hints that were stored so far, and retries failed writes of notes.
    pub async fn sync(&self) {
        self.missed.write().await;
        self.missed.reserve().await;
        let logs: Vec<Rc<HintLog>> = self.logs.borrow().values().cloned().collect();
        for log in logs {
            if let Err(error) = log.sync().await {
                tracing::error!(node = %log.target, %error, "hints cannot be synced, and a power loss may lose them: the node is recorded with missed writes");
            }
        }
        // After the sync: manifests have the lengths that are durable.
        self.write_manifests().await;
        self.witness.record().await;
    }

    /// Replays the hints for a node in order, until one cannot be delivered now, or a missed write
    /// cannot be recorded. Returns whether all hints were delivered or discarded. A shard runs one
    /// replay at a time: a concurrent call does nothing.
    pub async fn replay<F>(&self, target: HostId, deliver: impl Fn(Hint) -> F) -> io::Result<bool>
    where
        F: Future<Output = Delivered>,
    {
        let known = self.logs.borrow().get(&target).cloned();
        let Some(log) = known else { return Ok(true) };
        if self.replaying.replace(true) {
            return Ok(false);
        }
        let _end = EndOfReplay(&self.replaying);
        log.seal().await?;
        while let Some(file) = log.oldest() {
            let bytes = match rt::fs::read(&file.path).await {
                Ok(bytes) => bytes::Bytes::from(bytes),
                Err(error) if is_of_process(&error) => return Err(error),
                Err(error) => {
                    tracing::error!(file = %file.path.display(), %error,
                        "a file of hints cannot be read, and the node misses the writes in it: run `messina admin resync {target}`");
                    self.count(|metrics| metrics.corrupted += 1);
                    let noted = self.note(target, None, Cause::Damaged).await;
                    log.skip_oldest(noted.is_ok());
                    continue;
                }
            };
            let mut reader = match format::open(&bytes) {
                Ok(reader) => reader.skip_to(file.delivered),
                Err(why) => {
                    self.note(target, None, Cause::Damaged).await.map_err(io::Error::other)?;
                    tracing::error!(file = %file.path.display(), why,
                        "hints cannot be read, and are lost: run `messina admin resync {target}`");
                    self.count(|metrics| metrics.corrupted += 1);
                    log.remove_oldest().await?;
                    continue;
                }
            };
            loop {
                let begin = reader.position();
                let batch: Vec<Hint> = reader.by_ref().take(AT_ONCE).collect();
                if batch.is_empty() {
                    break;
                }
                let outcomes = futures_util::future::join_all(batch.into_iter().map(&deliver)).await;
                if outcomes.contains(&Delivered::NotYet) {
                    // The entire batch will be sent again. Writes are idempotent.
                    log.delivered_up_to(begin);
                    return Ok(false);
                }
                for outcome in &outcomes {
                    if let Delivered::Expired(table) = outcome {
                        self.note(target, Some(*table), Cause::Expired).await.map_err(io::Error::other)?;
                    }
                }
                let sent = outcomes.iter().filter(|outcome| **outcome == Delivered::Sent).count() as u64;
                self.count(|metrics| {
                    metrics.sent += sent;
                    metrics.dropped += outcomes.len() as u64 - sent;
                });
                log.delivered_up_to(reader.position());
                let took = (reader.position() - begin) as u64;
                let throttle = self.settings.borrow().throttle;
                if let Some(pause) = (took * 1_000_000).checked_div(throttle) {
                    rt::time::sleep(Duration::from_micros(pause)).await;
                }
            }
            // A record that is cut off may be left by a crash, but it may also be a lost write.
            if reader.damage().is_some() || reader.position() < bytes.len() {
                self.note(target, None, Cause::Damaged).await.map_err(io::Error::other)?;
            }
            if let Some(why) = reader.damage() {
                tracing::error!(file = %file.path.display(), why,
                    "hints are damaged, and the rest of the file is lost: run `messina admin resync {target}`");
                self.count(|metrics| metrics.corrupted += 1);
            }
            log.remove_oldest().await?;
        }
        Ok(log.is_empty())
    }
}

/// The directory for [`HintsConfig::notes`] of a node with this data directory.
pub fn notes_directory(data_dir: &Path) -> PathBuf {
    data_dir.join("hint-notes")
}

fn new_missed(notes: &Path, shard: u16) -> Missed {
    Missed::new(missed_path(notes, shard), reserve_path(notes, shard))
}

/// The names in a directory; none if the directory does not exist.
async fn names_in(directory: &Path) -> io::Result<Vec<String>> {
    match rt::fs::read_dir(directory).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        entries => Ok(entries?.into_iter().map(|entry| entry.name).collect()),
    }
}

struct EndOfReplay<'a>(&'a Cell<bool>);

impl Drop for EndOfReplay<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

#[cfg(test)]
mod tests;
