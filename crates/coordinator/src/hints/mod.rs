//! Hints: writes that a replica missed, kept on disk until it can take them.
//!
//! Each shard keeps its own, in a directory for each target: files of at most [`HintsConfig::file_bytes`], append-only ([`format`]). A hint is
//! stored once the kernel has it, and synced with the rest within [`HintsConfig::period`]; so a crash of the node loses none, and a
//! power loss at most the last period's. Hints are bounded in size and age: what is over the bounds is refused, and read repair or a repair
//! brings it back. Replay goes file by file, the oldest first; a file goes once all in it were delivered or dropped.
//! What becomes of a hint at replay is decided in [`fate`]. Which nodes miss writes that no hint
//! will bring is kept in `missed`, which files of hints must be there in `manifest`: both lie in
//! [`HintsConfig::notes`], away from the hints, so that hints which somebody removes are missed.
//! That there are such notes, and for which nodes, is known in a second place (`witness`), so that
//! notes which somebody removes are missed, too.
//! Nothing here knows how hints are sent.

pub mod fate;
pub mod format;
mod manifest;
mod missed;
mod pile;
mod sealed;
mod witness;

pub use missed::{Cause, MissedWrites, note_accepted_loss};
pub use witness::{Store, Stored, Witnessed, WitnessedNotes};

use format::Hint;
use manifest::Manifest;
use missed::{Missed, missed_name, missed_path};
use model::id::{HostId, TableId};
use model::mutation::Mutation;
use pile::{Pile, is_of_process};
use rt::time::Duration;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use uuid::Uuid;
use witness::{Lost, Witness, files_name, number_of};

/// For which nodes hints are kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum KeptFor {
    /// For all.
    All,
    /// For none. What was kept before is still delivered.
    Nobody,
    /// For those in these datacenters.
    Datacenters(Vec<String>),
}

/// What an operator can change while the node runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HintsSettings {
    /// `hinted_handoff_enabled`.
    pub kept_for: KeptFor,
    /// `max_hint_window_in_ms`: nodes that are down for longer get no new hints.
    pub window: Duration,
    /// Bytes per second that a shard replays at most (`hinted_handoff_throttle_in_kb`); 0: as many as it can.
    pub throttle: u64,
}

impl Default for HintsSettings {
    fn default() -> Self {
        HintsSettings { kept_for: KeptFor::All, window: Duration::from_secs(3 * 3600), throttle: 8 << 20 }
    }
}

/// How a shard's hints are bounded.
#[derive(Clone, Debug)]
pub struct HintsConfig {
    /// Where they are: a directory for each shard below it.
    pub directory: PathBuf,
    /// Where it is noted which files of hints must be there and which nodes missed writes: not below the directory of the hints.
    pub notes: PathBuf,
    /// What can be changed later.
    pub settings: HintsSettings,
    /// The most bytes on disk of this shard.
    pub max_bytes: u64,
    /// The most bytes of one file.
    pub file_bytes: u64,
    /// How often what was stored is synced, and replay is tried.
    pub period: Duration,
}

impl HintsConfig {
    /// ScyllaDB's bounds, of a shard that may use this much of the disk.
    pub fn new(directory: PathBuf, notes: PathBuf, max_bytes: u64) -> HintsConfig {
        HintsConfig {
            directory,
            notes,
            settings: HintsSettings::default(),
            max_bytes,
            file_bytes: 32 << 20,
            period: Duration::from_secs(10),
        }
    }
}

/// Why a hint was not kept.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The target has been down for too long.
    #[error("the node has been down for longer than max_hint_window_in_ms")]
    TooLongDown,
    /// There is as much as there may be.
    #[error("hints take up all the space that they may")]
    Full,
    /// The disk failed.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// What happened to hints.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HintsMetrics {
    /// Kept.
    pub written: u64,
    /// Refused, for whatever reason.
    pub refused: u64,
    /// Delivered.
    pub sent: u64,
    /// Given up: too old, of a table that is gone, or refused by the replica.
    pub dropped: u64,
    /// That could not be read back.
    pub corrupted: u64,
    /// Bytes on disk.
    pub bytes: u64,
}

/// What became of a hint that was to be delivered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivered {
    /// It is there.
    Sent,
    /// It is of no use any more.
    Dropped,
    /// It is of a table that is still there, and too old to be sent: the target misses it.
    Expired(TableId),
    /// A replica will never take it, and is noted as missing it.
    Refused,
    /// Not now: keep it.
    NotYet,
}

/// A file that is shorter than it was: what names it, its number and its length in bytes.
type Shorter = (Rc<Manifest>, u64, u64);

/// Hints that are delivered at the same time.
const AT_ONCE: usize = 128;

/// One shard's hints.
pub struct Hints {
    config: HintsConfig,
    shard: u16,
    settings: RefCell<Rc<HintsSettings>>,
    /// Of this shard's directory, and of those that it took over.
    manifests: Rc<RefCell<BTreeMap<u16, Rc<Manifest>>>>,
    piles: RefCell<BTreeMap<HostId, Rc<Pile>>>,
    bytes: Rc<Cell<u64>>,
    metrics: Cell<HintsMetrics>,
    replaying: Cell<bool>,
    missed: Rc<Missed>,
    witness: Rc<Witness>,
}

impl Hints {
    /// Opens the hints of shard `shard` of `shards`, as [`Hints::open_witnessed`] does, without a
    /// second place that knows of the notes.
    pub async fn open(config: HintsConfig, shard: u16, shards: u16) -> io::Result<Rc<Hints>> {
        Hints::open_with(config, shard, shards, Witnessed::new(), None).await
    }

    /// Opens the hints of shard `shard` of `shards`. Those that shards left which are no more are
    /// taken over. Hints that are missing are noted as missed writes, and so are those of nodes of
    /// which notes are missing that are `known` in a second place. `store` changes what that place
    /// knows.
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
        // What is noted to be there must not go with a power loss.
        rt::fs::sync_dir(&config.directory).await?;
        for parent in [&config.directory, &config.notes].into_iter().filter_map(|made| made.parent()) {
            // Not every directory of the system may be opened.
            let _ = rt::fs::sync_dir(parent).await;
        }
        let (manifests, missed) = (Rc::default(), Rc::new(Missed::new(missed_path(&config.notes, shard))));
        known.retain(|name, _| number_of(name).is_some_and(|number| number % shards.max(1) == shard));
        let hints = Hints {
            settings: RefCell::new(Rc::new(config.settings.clone())),
            witness: Rc::new(Witness::new(store, known.clone(), Rc::clone(&manifests), missed.clone())),
            missed,
            manifests,
            config,
            shard,
            piles: RefCell::default(),
            bytes: Rc::default(),
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
                let adopted = hints.pile(target).adopt(&directory.join(target.to_string()), &manifest).await?;
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

    /// The numbers of the shards whose hints and notes this shard has, itself among them.
    async fn directories(&self, shard: u16, shards: u16) -> io::Result<BTreeSet<u16>> {
        let hints = names_in(&self.config.directory).await?;
        let notes = names_in(&self.config.notes).await?;
        let notes = notes.iter().filter_map(|name| number_of(name));
        let numbers = hints.iter().filter_map(|name| name.parse::<u16>().ok()).chain(notes);
        Ok(numbers.filter(|number| number % shards.max(1) == shard).chain([shard]).collect())
    }

    /// Takes over the notes of missed writes that shards left, also where earlier builds kept them:
    /// among the hints. Says which files may be removed once all is on disk. Those that are not
    /// what they were are `lost`.
    async fn take_over_notes(
        &self,
        shard: u16,
        numbers: &BTreeSet<u16>,
        lost: &mut Vec<Lost>,
    ) -> io::Result<Vec<PathBuf>> {
        let own = missed_path(&self.config.notes, shard);
        let mut others = Vec::new();
        for number in numbers {
            let path = missed_path(&self.config.notes, *number);
            let name = missed_name(*number);
            let why = self.missed.adopt(&path, self.witness.sequence(&name)).await?;
            lost.extend(self.witness.lost(name, why));
            let old = self.config.directory.join(number.to_string()).join(missed::OLD_NAME);
            self.missed.adopt(&old, 0).await?;
            for path in [path, old] {
                if path != own && rt::fs::exists(&path).await {
                    others.push(path);
                }
            }
        }
        if !others.is_empty() {
            self.missed.changed().await;
        }
        Ok(others)
    }

    /// Notes that nodes may miss writes, because notes are lost.
    async fn note_lost(&self, lost: Vec<Lost>) {
        for Lost { name, why, nodes } in lost {
            let file = self.config.notes.join(name);
            tracing::warn!(
                file = %file.display(), nodes = nodes.len(),
                "a file of notes of hints {why}: the nodes that it named may miss writes, and are noted. For each node that \
                 `messina admin status` shows, run `messina admin resync NODE`"
            );
            self.count(|metrics| metrics.corrupted += 1);
            for (target, since) in nodes {
                self.missed.note_since(target, None, Cause::NotesLost, since).await;
            }
        }
    }

    /// Notes that the targets of these files miss what was in them, and then does not expect the files any more.
    async fn note_missing(&self, missing: BTreeMap<HostId, Vec<(Rc<Manifest>, u64)>>) {
        for (target, files) in missing {
            tracing::error!(
                target_node = %target, files = files.len(), directory = %self.config.directory.display(),
                "files of hints are missing: the node lacks the writes in them, and no hint will bring these. Restore the files and start \
                 again; or run `messina admin resync {target}`"
            );
            self.count(|metrics| metrics.corrupted += files.len() as u64);
            self.missed.note(target, None, Cause::Damaged).await;
            if self.missed.is_written() {
                files.iter().for_each(|(manifest, number)| manifest.take(target, *number));
            }
        }
    }

    /// Notes that the targets miss what was at the ends of these files, and expects no more of them.
    async fn note_shorter(&self, shorter: BTreeMap<HostId, Vec<Shorter>>) {
        for (target, files) in shorter {
            tracing::error!(
                target_node = %target, files = files.len(), directory = %self.config.directory.display(),
                "files of hints are shorter than they were: the node lacks the writes at their ends. Restore \
                 the files and start again; or run `messina admin resync {target}`"
            );
            self.count(|metrics| metrics.corrupted += files.len() as u64);
            self.missed.note(target, None, Cause::Damaged).await;
            if self.missed.is_written() {
                files.iter().for_each(|(manifest, number, bytes)| manifest.measure(target, *number, *bytes));
            }
        }
    }

    /// Writes down which files must be there. What cannot be written is tried again by the next [`Hints::sync`].
    async fn write_manifests(&self) {
        let manifests: Vec<Rc<Manifest>> = self.manifests.borrow().values().cloned().collect();
        for manifest in manifests {
            if let Err(error) = manifest.write().await {
                tracing::debug!(%error, "the manifest of hints cannot be written; it is tried again");
            }
        }
    }

    /// Notes that a node misses a write, and has the second place know it.
    async fn note(&self, target: HostId, table: Option<TableId>, cause: Cause) {
        self.missed.note(target, table, cause).await;
        self.witness.record_missed().await;
    }

    /// Goes by other settings from now on.
    pub fn set(&self, settings: HintsSettings) {
        self.settings.replace(Rc::new(settings));
    }

    /// Whether hints are kept for nodes of a datacenter.
    pub fn are_kept_for(&self, datacenter: Option<&str>) -> bool {
        match &self.settings.borrow().kept_for {
            KeptFor::All => true,
            KeptFor::Nobody => false,
            KeptFor::Datacenters(names) => datacenter.is_some_and(|own| names.iter().any(|name| name == own)),
        }
    }

    fn pile(&self, target: HostId) -> Rc<Pile> {
        let own = self.config.directory.join(self.shard.to_string());
        let manifest = || self.manifests.borrow().get(&self.shard).cloned().expect("its own is the first to be opened");
        let notes = || (self.shard, manifest(), self.witness.clone());
        let fresh = || Rc::new(Pile::new(own.join(target.to_string()), notes(), target, self.bytes.clone()));
        self.piles.borrow_mut().entry(target).or_insert_with(fresh).clone()
    }

    /// Keeps a write for a node that was routed by the metadata of a number. `down_for`: how long that has not answered, if it is known to be
    /// down.
    pub async fn store(
        &self,
        target: HostId,
        mutation: &Mutation,
        number: u64,
        down_for: Option<Duration>,
    ) -> Result<(), Refused> {
        let stored = self.try_store(target, mutation, number, down_for).await;
        self.count(|metrics| match &stored {
            Ok(()) => metrics.written += 1,
            Err(_) => metrics.refused += 1,
        });
        let cause = match &stored {
            Ok(()) => return stored,
            Err(Refused::TooLongDown) => Cause::WindowOver,
            Err(Refused::Full) => Cause::Full,
            Err(Refused::Io(_)) => Cause::NotWritten,
        };
        self.note(target, Some(mutation.table()), cause).await;
        stored
    }

    async fn try_store(
        &self,
        target: HostId,
        mutation: &Mutation,
        number: u64,
        down_for: Option<Duration>,
    ) -> Result<(), Refused> {
        if down_for.is_some_and(|time| time > self.settings.borrow().window) {
            return Err(Refused::TooLongDown);
        }
        let record = format::encode(&Hint { written: rt::time::wall_micros(), number, mutation: mutation.clone() });
        if self.bytes.get() + record.len() as u64 > self.config.max_bytes {
            return Err(Refused::Full);
        }
        self.pile(target).append(&record, self.config.file_bytes).await?;
        Ok(())
    }

    fn count(&self, change: impl FnOnce(&mut HintsMetrics)) {
        let mut metrics = self.metrics.get();
        change(&mut metrics);
        self.metrics.set(metrics);
    }

    /// What happened so far.
    pub fn metrics(&self) -> HintsMetrics {
        HintsMetrics { bytes: self.bytes.get(), ..self.metrics.get() }
    }

    /// The nodes that miss writes which no hint will bring.
    pub fn missed(&self) -> Vec<MissedWrites> {
        self.missed.list()
    }

    /// Notes that a node misses a write that no hint will bring. Returns once it is on disk, if it is news.
    pub async fn note_missed(&self, target: HostId, table: TableId, cause: Cause) {
        self.note(target, Some(table), cause).await;
    }

    /// Forgets what was noted of a node by a time; of these tables, or everything if none are
    /// given.
    pub async fn forget_missed(&self, target: HostId, tables: Option<&[Option<TableId>]>, by: i64) {
        self.missed.forget(target, tables, by).await;
        self.witness.record_missed().await;
    }

    /// Marks what is noted of a node, for [`Hints::forget_marked`]. A note that is renewed loses its mark.
    pub fn mark_missed(&self, target: HostId, mark: Uuid) {
        self.missed.mark(target, mark);
    }

    /// Forgets what was noted of a node in these tables, as far as it has this mark.
    pub async fn forget_marked(&self, target: HostId, tables: &[Option<TableId>], mark: Uuid) {
        self.missed.forget_marked(target, tables, mark).await;
        self.witness.record_missed().await;
    }

    /// Bytes of hints for a node that are not delivered yet.
    pub fn pending(&self, target: HostId) -> u64 {
        self.piles.borrow().get(&target).map_or(0, |pile| pile.pending())
    }

    /// The nodes for which there are hints.
    pub fn targets(&self) -> Vec<HostId> {
        let piles = self.piles.borrow();
        piles.iter().filter(|(_, pile)| !pile.is_empty()).map(|(target, _)| *target).collect()
    }

    /// How often to call [`Hints::sync`] and [`Hints::replay`].
    pub fn period(&self) -> Duration {
        self.config.period
    }

    /// Makes all that was stored so far survive a loss of power, and writes notes of missed writes that could not be written before.
    pub async fn sync(&self) {
        self.missed.write().await;
        let piles: Vec<Rc<Pile>> = self.piles.borrow().values().cloned().collect();
        for pile in piles {
            if let Err(error) = pile.sync().await {
                tracing::error!(target_node = %pile.target, %error, "hints cannot be synced");
            }
        }
        // After the sync: manifests have the lengths that are durable.
        self.write_manifests().await;
        self.witness.record().await;
    }

    /// Delivers what there is for a node, in order, until something cannot be delivered now. Says whether nothing is left. One replay at a
    /// time runs on a shard; another one does nothing.
    pub async fn replay<F>(&self, target: HostId, deliver: impl Fn(Hint) -> F) -> io::Result<bool>
    where
        F: Future<Output = Delivered>,
    {
        let known = self.piles.borrow().get(&target).cloned();
        let Some(pile) = known else { return Ok(true) };
        if self.replaying.replace(true) {
            return Ok(false);
        }
        let _end = EndOfReplay(&self.replaying);
        pile.seal().await?;
        while let Some(file) = pile.oldest() {
            let bytes = match rt::fs::read(&file.path).await {
                Ok(bytes) => bytes::Bytes::from(bytes),
                Err(error) if is_of_process(&error) => return Err(error),
                Err(error) => {
                    tracing::error!(file = %file.path.display(), %error, "a file of hints cannot be read: the node misses the writes in it");
                    self.count(|metrics| metrics.corrupted += 1);
                    self.note(target, None, Cause::Damaged).await;
                    pile.forget_oldest(self.missed.is_written());
                    continue;
                }
            };
            let mut reader = match format::open(&bytes) {
                Ok(reader) => reader.skip_to(file.delivered),
                Err(why) => {
                    tracing::error!(file = %file.path.display(), why, "hints cannot be read: they are lost");
                    self.count(|metrics| metrics.corrupted += 1);
                    self.note(target, None, Cause::Damaged).await;
                    pile.remove_oldest().await?;
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
                    // All of the batch will be sent again: a write that is there twice is there once.
                    pile.delivered_up_to(begin);
                    return Ok(false);
                }
                for outcome in &outcomes {
                    if let Delivered::Expired(table) = outcome {
                        self.note(target, Some(*table), Cause::Expired).await;
                    }
                }
                let sent = outcomes.iter().filter(|outcome| **outcome == Delivered::Sent).count() as u64;
                self.count(|metrics| {
                    metrics.sent += sent;
                    metrics.dropped += outcomes.len() as u64 - sent;
                });
                pile.delivered_up_to(reader.position());
                let took = (reader.position() - begin) as u64;
                let throttle = self.settings.borrow().throttle;
                if let Some(pause) = (took * 1_000_000).checked_div(throttle) {
                    rt::time::sleep(Duration::from_micros(pause)).await;
                }
            }
            if let Some(why) = reader.damage() {
                tracing::error!(file = %file.path.display(), why, "hints are damaged: what follows in the file is lost");
                self.count(|metrics| metrics.corrupted += 1);
            }
            // A record that is cut off may be of a crash; nobody knows what it said all the same.
            if reader.damage().is_some() || reader.position() < bytes.len() {
                self.note(target, None, Cause::Damaged).await;
            }
            pile.remove_oldest().await?;
        }
        Ok(pile.is_empty())
    }
}

/// Where a node with this data directory keeps [`HintsConfig::notes`].
pub fn notes_directory(data_dir: &Path) -> PathBuf {
    data_dir.join("hint-notes")
}

/// The names of directories and files in a directory; none if it is not there.
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
