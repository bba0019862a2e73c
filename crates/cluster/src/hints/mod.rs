//! Hints: writes that a replica missed, kept on disk until it can take them.
//!
//! Each shard keeps its own, in a directory for each target: files of at most [`HintsConfig::file_bytes`], append-only ([`format`]). A hint is
//! stored once the kernel has it, and synced with the rest within [`HintsConfig::period`]; so a crash of the node loses none, and a
//! power loss at most the last period's. Hints are bounded in size and age: what is over the bounds is refused, and read repair or a repair
//! brings it back. Replay goes file by file, the oldest first; a file goes once all in it were delivered or dropped.
//! What becomes of a hint at replay is decided in [`fate`]. Which nodes miss writes that no hint
//! will bring is kept in `missed`. Nothing here knows how hints are sent.

pub mod fate;
pub mod format;
mod missed;
mod pile;

pub use missed::{Cause, MissedWrites};

use format::Hint;
use missed::Missed;
use model::id::{HostId, TableId};
use model::mutation::Mutation;
use pile::Pile;
use rt::time::Duration;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use uuid::Uuid;

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
    pub fn new(directory: PathBuf, max_bytes: u64) -> HintsConfig {
        HintsConfig {
            directory,
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
    /// Given up: too old, or of a table that is gone.
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
    /// Not now: keep it.
    NotYet,
}

/// Hints that are delivered at the same time.
const AT_ONCE: usize = 128;

/// One shard's hints.
pub struct Hints {
    config: HintsConfig,
    settings: RefCell<Rc<HintsSettings>>,
    piles: RefCell<BTreeMap<HostId, Rc<Pile>>>,
    bytes: Rc<Cell<u64>>,
    metrics: Cell<HintsMetrics>,
    replaying: Cell<bool>,
    missed: Missed,
}

impl Hints {
    /// Opens the hints of shard `shard` of `shards`. Those that shards left which are no more are taken over.
    pub async fn open(config: HintsConfig, shard: u16, shards: u16) -> io::Result<Rc<Hints>> {
        let own = config.directory.join(shard.to_string());
        rt::fs::create_dir_all(&own).await?;
        let hints = Hints {
            settings: RefCell::new(Rc::new(config.settings.clone())),
            missed: Missed::new(own.join(missed::NAME)),
            config,
            piles: RefCell::default(),
            bytes: Rc::default(),
            metrics: Cell::default(),
            replaying: Cell::new(false),
        };
        for entry in rt::fs::read_dir(&hints.config.directory).await? {
            let number = entry.name.parse::<u16>().ok().filter(|_| entry.is_dir);
            let Some(number) = number.filter(|number| number % shards.max(1) == shard) else { continue };
            let directory = hints.config.directory.join(number.to_string());
            let notes = directory.join(missed::NAME);
            hints.missed.adopt(&notes).await?;
            if number != shard && rt::fs::exists(&notes).await {
                hints.missed.changed().await;
                rt::fs::remove_file(&notes).await?;
            }
            for target in rt::fs::read_dir(&directory).await? {
                let Ok(host) = Uuid::parse_str(&target.name) else { continue };
                let pile = hints.pile(HostId(host));
                pile.adopt(&directory.join(&target.name)).await?;
            }
        }
        Ok(Rc::new(hints))
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
        let own = self.config.directory.join(rt::shard::this().to_string());
        let fresh = || Rc::new(Pile::new(own.join(target.to_string()), target, self.bytes.clone()));
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
        self.missed.note(target, Some(mutation.table()), cause).await;
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

    /// Forgets what was noted of a node by a time; of these tables, or everything if none are
    /// given.
    pub async fn forget_missed(&self, target: HostId, tables: Option<&[Option<TableId>]>, by: i64) {
        self.missed.forget(target, tables, by).await;
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

    /// Makes all that was stored so far survive a loss of power.
    pub async fn sync(&self) {
        let piles: Vec<Rc<Pile>> = self.piles.borrow().values().cloned().collect();
        for pile in piles {
            if let Err(error) = pile.sync().await {
                tracing::error!(target_node = %pile.target, %error, "hints cannot be synced");
            }
        }
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
            let bytes = bytes::Bytes::from(rt::fs::read(&file.path).await?);
            let mut reader = match format::open(&bytes) {
                Ok(reader) => reader.skip_to(file.delivered),
                Err(why) => {
                    tracing::error!(file = %file.path.display(), why, "hints cannot be read: they are lost");
                    self.count(|metrics| metrics.corrupted += 1);
                    self.missed.note(target, None, Cause::Damaged).await;
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
                        self.missed.note(target, Some(*table), Cause::Expired).await;
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
                self.missed.note(target, None, Cause::Damaged).await;
            }
            pile.remove_oldest().await?;
        }
        Ok(pile.is_empty())
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
