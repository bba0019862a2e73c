//! The second record of the files of hint-notes. Without it, the node could not distinguish removed
//! files from files that never existed.
//!
//! The notes of a shard are the manifest of its hints (`<shard>.files`) and its missed writes
//! (`<shard>.missed`). For each of these files the second record holds a sequence number, and the
//! nodes that miss writes if the file is lost. A server keeps this record in the inventory of its
//! data directory.
//!
//! Invariant: a sequence number is recorded after the file with that number is durable. So after
//! any crash, a file that is missing, damaged, or has a smaller number was lost or replaced. A node
//! is recorded before its first hint is acknowledged, and with each new entry of its missed writes.
//! It is removed after its last hint was delivered and its last entry was removed, at the next
//! [`super::Hints::sync`]. If the notes are lost before that sync, the node is resynced although it
//! misses no writes.

use super::manifest::Manifest;
use super::missed::Missed;
use model::id::HostId;
use rt::sync::Semaphore;
use serde::{Deserialize, Serialize};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::rc::Rc;

/// The record of one file of notes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct WitnessedNotes {
    /// The sequence number with which the file was durable.
    pub sequence: u64,
    /// The nodes that miss writes if the file is lost, and since when: microseconds since the
    /// epoch.
    pub nodes: BTreeMap<HostId, i64>,
}

/// The records of files of notes, by file name.
pub type Witnessed = BTreeMap<String, WitnessedNotes>;

/// Changes the second record, durably. None removes the entry of a file that names no nodes any
/// more.
pub type Store = Box<dyn Fn(Vec<(String, Option<WitnessedNotes>)>) -> Stored>;

/// The result of a [`Store`].
pub type Stored = Pin<Box<dyn Future<Output = io::Result<()>>>>;

/// A file of notes that was lost.
pub(super) struct Lost {
    pub name: String,
    pub why: &'static str,
    pub nodes: BTreeMap<HostId, i64>,
}

/// The second record, for the notes of one shard.
pub(super) struct Witness {
    /// None: there is no second record.
    store: Option<Store>,
    /// The contents of the second record.
    recorded: RefCell<Witnessed>,
    manifests: Rc<RefCell<BTreeMap<u16, Rc<Manifest>>>>,
    missed: Rc<Missed>,
    write_permit: Semaphore,
    /// Whether the last change failed.
    failing: Cell<bool>,
}

impl Witness {
    pub fn new(
        store: Option<Store>,
        known: Witnessed,
        manifests: Rc<RefCell<BTreeMap<u16, Rc<Manifest>>>>,
        missed: Rc<Missed>,
    ) -> Witness {
        let (recorded, write_permit) = (RefCell::new(known), Semaphore::new(1));
        Witness { store, recorded, manifests, missed, write_permit, failing: Cell::new(false) }
    }

    /// The minimum sequence number of a file; 0 if the file is not recorded.
    pub fn sequence(&self, name: &str) -> u64 {
        self.recorded.borrow().get(name).map_or(0, |known| known.sequence)
    }

    /// Describes the loss of a file: why, and which nodes miss writes. None if the file was not
    /// lost.
    pub fn lost(&self, name: String, why: Option<&'static str>) -> Option<Lost> {
        let nodes = self.recorded.borrow().get(&name)?.nodes.clone();
        why.map(|why| Lost { name, why, nodes })
    }

    /// Records a node before its first hint is acknowledged. The manifest must already list the
    /// file of that hint.
    pub async fn begin(&self, shard: u16, target: HostId) -> io::Result<()> {
        let is_known =
            |known: &Witnessed| known.get(&files_name(shard)).is_some_and(|notes| notes.nodes.contains_key(&target));
        self.change_unless(is_known).await
    }

    /// Records changes of the missed writes. An error is logged, and [`Witness::record`] retries.
    /// Until then, further calls do nothing: each missed write would wait for a disk that fails.
    pub async fn record_missed(&self) {
        let (name, sequence) = (self.missed.name(), self.missed.sequence());
        let is_known = |known: &Witnessed| known.get(&name).map_or(0, |notes| notes.sequence) == sequence;
        if self.store.is_some() && !self.failing.get() && self.missed.is_written() && !is_known(&self.recorded.borrow())
        {
            self.record().await;
        }
    }

    /// Records all changes. An error is logged once. Returns whether everything is recorded.
    pub async fn record(&self) -> bool {
        match self.change_unless(|_| false).await {
            Ok(()) => {
                if self.failing.replace(false) {
                    tracing::info!("the files of hint-notes are recorded in the inventory again");
                }
                true
            }
            Err(error) => {
                if !self.failing.replace(true) {
                    tracing::error!(%error,
                        "the files of hint-notes cannot be recorded in the inventory: a start would not detect their loss; retrying");
                }
                false
            }
        }
    }

    async fn change_unless(&self, is_known: impl Fn(&Witnessed) -> bool) -> io::Result<()> {
        let Some(store) = &self.store else { return Ok(()) };
        let _permit = self.write_permit.acquire().await.map_err(io::Error::other)?;
        if is_known(&self.recorded.borrow()) {
            return Ok(());
        }
        let wanted = self.wanted();
        let changes = changes(&self.recorded.borrow(), &wanted);
        if !changes.is_empty() {
            store(changes).await?;
            self.recorded.replace(wanted);
        }
        Ok(())
    }

    /// The required contents of the second record.
    fn wanted(&self) -> Witnessed {
        let (known, now) = (self.recorded.borrow(), rt::time::wall_micros());
        let mut wanted = Witnessed::new();
        for (number, manifest) in self.manifests.borrow().iter() {
            let name = files_name(*number);
            let before = known.get(&name);
            let since = |target| before.and_then(|notes| notes.nodes.get(&target)).copied().unwrap_or(now);
            let nodes = manifest.targets().into_iter().map(|target| (target, since(target))).collect();
            wanted.insert(name, WitnessedNotes { sequence: manifest.sequence(), nodes });
        }
        let mut missed = WitnessedNotes { sequence: self.missed.sequence(), ..WitnessedNotes::default() };
        for one in self.missed.list() {
            let since = missed.nodes.entry(one.target).or_insert(one.since);
            *since = one.since.min(*since);
        }
        wanted.insert(self.missed.name(), missed);
        if !self.missed.is_written() {
            // The loss of a file may be noted in memory only.
            for (name, before) in known.iter() {
                let notes = wanted.entry(name.clone()).or_default();
                notes.sequence = notes.sequence.max(before.sequence);
                for (target, since) in &before.nodes {
                    notes.nodes.entry(*target).or_insert(*since);
                }
            }
        }
        wanted.retain(|_, notes| !notes.nodes.is_empty());
        wanted
    }
}

/// The name of the manifest of a shard's hints.
pub(super) fn files_name(shard: u16) -> String {
    format!("{shard}.files")
}

/// The number of the shard that a file of notes belongs to.
pub(super) fn number_of(name: &str) -> Option<u16> {
    [".files", ".missed", ".reserve"].iter().find_map(|ending| name.strip_suffix(ending))?.parse().ok()
}

fn changes(known: &Witnessed, wanted: &Witnessed) -> Vec<(String, Option<WitnessedNotes>)> {
    let gone = known.keys().filter(|name| !wanted.contains_key(*name)).map(|name| (name.clone(), None));
    let other = wanted.iter().filter(|(name, notes)| known.get(*name) != Some(*notes));
    gone.chain(other.map(|(name, notes)| (name.clone(), Some(notes.clone())))).collect()
}
