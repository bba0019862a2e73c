//! A tablet moves from one shard of this node to another.
//!
//! The shards share the directory of a table, so no file is copied. The old shard flushes the
//! tablet and names its sstables, and the new shard opens them ([`Engine::hand_over`], on the old
//! shard):
//!
//! 1. The metadata give the tablet to the new shard. From then on the old shard refuses requests
//!    for it, and the new shard has them wait ([`Engine::place_of`]).
//! 2. The old shard flushes what it was still writing. Its compactions of the tablet end.
//! 3. The new shard notes the sstables, so that a truncation includes them from now on.
//! 4. The old shard drops the tablet, in one step, and removes the sstables from its list.
//! 5. The new shard opens the sstables and adds the tablet. The requests that wait continue.
//!
//! None of this is recorded. After a crash, a start gives each tablet to the shard that the
//! metadata name, and replays the logs of all shards to it. If a step fails, it is repeated. Before
//! the third step nothing has changed, and afterwards the sstables are part of the table whatever
//! happens.

use crate::commitlog::Position;
use crate::engine::{Engine, TabletRange};
use crate::error::EngineError;
use crate::memtable::Interval;
use crate::metrics;
use crate::table::{Attached, SstableSet, Table, Tablet};
use model::TableId;
use rt::ShardId;
use rt::shard::PerShard;
use rt::time::Duration;
use sstable::{Component, Corrupt, Sstable, SstablePath};
use std::rc::Rc;
use uuid::Uuid;

/// The interval at which the end of a truncation is looked for.
const LOOK: Duration = Duration::from_millis(5);

/// An sstable that was handed over, with the log intervals that it covers, and the attempt to open
/// it.
type Opened = (SstablePath, Vec<Interval>, Result<Rc<Sstable>, sstable::Error>);

/// A tablet, as the old shard describes it.
#[derive(Clone)]
struct Handed {
    table: TableId,
    tablet: TabletRange,
    /// The epoch of the table.
    epoch: u64,
    /// The sstables with the log intervals that they cover.
    sstables: Vec<(SstablePath, Vec<Interval>)>,
    /// The sstables of the table that could not be opened: they may have data of the tablet.
    unreadable: Vec<(SstablePath, Corrupt)>,
    tablet_counter_id: Option<Uuid>,
    /// See [`Tablet::earlier_logs`].
    earlier_logs: Vec<Interval>,
}

impl Engine {
    /// Flushes a tablet of a shard that will hand it over, so that little is left to flush then.
    ///
    /// # Errors
    ///
    /// [`EngineError::NotStreamable`] if the table has sstables that could not be opened: another
    /// shard could not open them either. An I/O error if the disk cannot be written.
    pub async fn prepare_hand_over(
        from: ShardId,
        engines: PerShard<Engine>,
        id: TableId,
        tablet: u32,
    ) -> Result<(), EngineError> {
        on_shard(from, engines, move |engine| async move { engine.flush_to_hand_over(id, tablet).await }).await?
    }

    async fn flush_to_hand_over(&self, id: TableId, tablet: u32) -> Result<(), EngineError> {
        let table = self.table_or_error(id)?;
        if let Some(place) = table.unreadable.places().first() {
            let (path, why) = (place.path(Component::Data), "it could not be opened".to_owned());
            return Err(EngineError::NotStreamable { path, why });
        }
        self.flush_one_tablet(id, tablet).await?;
        // The list must be written again when the tablet leaves. If the disk is full, the move
        // waits while the tablet can still be read.
        if table.names_to_list().is_empty() {
            return Ok(());
        }
        table.listed.set(None);
        self.list_sstables(&table).await
    }

    /// Hands a tablet over to another shard: see the module. Returns when that shard serves it.
    ///
    /// # Errors
    ///
    /// [`EngineError::Cancelled`] if the table is dropped or the shard stops.
    pub async fn hand_over(
        &self,
        table: TableId,
        tablet: u32,
        to: ShardId,
        engines: PerShard<Engine>,
    ) -> Result<(), EngineError> {
        let table = self.table_or_error(table)?;
        self.detached(move |engine| async move {
            let Some(own) = table.tablets().iter().find(|own| own.id == tablet).cloned() else {
                return Err(EngineError::Cancelled);
            };
            let (handed, _handing) = loop {
                let handing = table.handing.enter();
                let given_up = match table.tablets_held.get() {
                    0 => engine.give_up_tablet(&table, &own, to, engines).await,
                    _ => Ok(None),
                };
                match given_up {
                    Ok(Some(handed)) => break (handed, handing),
                    Ok(None) => {
                        drop(handing);
                        rt::time::sleep(LOOK).await;
                    }
                    Err(EngineError::Cancelled) => return Err(EngineError::Cancelled),
                    Err(error) => {
                        drop(handing);
                        let (dir, to) = (table.dir.display(), to.0);
                        tracing::warn!(%dir, tablet, to, %error, "a tablet cannot move to another shard; retrying");
                        engine.wait_to_retry(&table).await?;
                    }
                }
                if table.work.is_closed() {
                    return Err(EngineError::Cancelled);
                }
            };
            let taking = handed.clone();
            let taken = on_shard(to, engines, move |engine| async move { engine.take_tablet(taking).await }).await?;
            if taken.is_err() {
                // The table is dropped or the shard stops: neither waits for the tablet.
                on_shard(to, engines, move |engine| async move { engine.forget_tablet(&handed) }).await?;
            }
            taken
        })
        .await
    }

    /// The second to fourth step of the module. `None` if the tablet has changed meanwhile.
    async fn give_up_tablet(
        &self,
        table: &Rc<Table>,
        own: &Rc<Tablet>,
        to: ShardId,
        engines: PerShard<Engine>,
    ) -> Result<Option<Handed>, EngineError> {
        let Some(_working) = table.work.enter() else { return Err(EngineError::Cancelled) };
        table.waiting_writes.earlier_have_left().await;
        self.flush_tablet(table, own).await?;
        let _excluded = own.compactions.exclude().await;
        let _turn = own.flush_turn.acquire().await.map_err(|_| EngineError::Cancelled)?;
        let set = own.sstables();
        let handed = Handed {
            table: table.schema().id,
            tablet: TabletRange { id: own.id, range: own.range.clone() },
            epoch: table.epoch.get(),
            sstables: set.iter().map(|one| (one.sstable.place().clone(), one.intervals.clone())).collect(),
            unreadable: table.unreadable.all(),
            tablet_counter_id: own.tablet_counter_id.get(),
            earlier_logs: self.logs_of(own),
        };
        let noted = handed.clone();
        if !on_shard(to, engines, move |engine| async move { engine.note_tablet(&noted) }).await? {
            return Ok(None);
        }
        // Nothing is awaited from here on until the tablet has left this shard.
        let is_same = Rc::ptr_eq(&set, &own.sstables()) && table.epoch.get() == handed.epoch && table.serves(own);
        if !is_same || own.needs_flush() || !own.active().is_empty() || !table.waiting_writes.is_empty() {
            on_shard(to, engines, move |engine| async move { engine.forget_tablet(&handed) }).await?;
            return Ok(None);
        }
        table.begin_removal(own);
        let all: Vec<_> = set.iter().cloned().collect();
        own.replace(&all, []);
        own.unlisted.take();
        self.log().clean(own.slot, Position::MAX);
        self.registry().release_slot(own.slot);
        table.finish_removal(own);
        for one in all.iter().filter(|one| one.is_read()) {
            // The new shard may remove its files.
            if let Err(error) = one.sstable.keep_open().await {
                tracing::warn!(generation = %one.generation(), %error,
                    "an sstable moves to another shard while it is read, and cannot be kept open: its readers may fail");
            }
        }
        while let Err(error) = self.list_sstables(table).await {
            // The new shard must not remove what this one lists.
            tracing::warn!(dir = %table.dir.display(), %error, "the list of sstables cannot be written; retrying");
            if let Err(stopped) = self.wait_to_retry(table).await {
                // The next start gives the sstables to the new shard.
                on_shard(to, engines, move |engine| async move { engine.forget_tablet(&handed) }).await?;
                return Err(stopped);
            }
        }
        Ok(Some(handed))
    }

    /// Notes the sstables of a tablet that comes to this shard. Returns false if the tablet cannot
    /// be taken now: the table is truncated at this moment, or is not here.
    fn note_tablet(&self, handed: &Handed) -> bool {
        let is_ready = |table: &Rc<Table>| table.epoch.get() == handed.epoch && table.tablets_held.get() == 0;
        let Some(table) = self.table(handed.table).filter(is_ready) else { return false };
        let Some(working) = table.work.enter() else { return false };
        let is_expected = self.shard_moves().note(handed.table, &handed.tablet, Some(working));
        if is_expected {
            table.loading.begin(handed.places());
        }
        is_expected
    }

    /// Undoes [`Engine::note_tablet`].
    fn forget_tablet(&self, handed: &Handed) {
        if let Some(table) = self.table(handed.table) {
            handed.places().iter().for_each(|place| _ = table.loading.end(place));
        }
        self.shard_moves().note(handed.table, &handed.tablet, None);
    }

    /// The last step of the module.
    async fn take_tablet(&self, handed: Handed) -> Result<(), EngineError> {
        let table = self.table_or_error(handed.table)?;
        self.detached(move |engine| async move {
            let mut opened = Vec::with_capacity(handed.sstables.len());
            for (place, intervals) in &handed.sstables {
                let sstable = loop {
                    match Sstable::open_at(place, engine.cache()).await {
                        Err(error) if error.is_of_process() => {
                            tracing::warn!(dir = %table.dir.display(), %error, "an sstable cannot be opened; retrying");
                            engine.wait_to_retry(&table).await?;
                        }
                        opened => break opened,
                    }
                };
                opened.push((place.clone(), intervals.clone(), sstable));
            }
            // A truncation that has begun removes what it has found. The rest is added afterwards.
            while table.epoch.get() != handed.epoch && handed.places().iter().any(|place| table.loading.waits(place)) {
                if table.work.is_closed() {
                    return Err(EngineError::Cancelled);
                }
                rt::time::sleep(LOOK).await;
            }
            // Nothing is awaited from here on until the tablet is served.
            let truncated = engine.add_handed(&table, &handed, opened);
            if let Err(error) = engine.list_sstables(&table).await {
                tracing::warn!(dir = %table.dir.display(), %error, "the sstables of a tablet are not listed yet: a start would not detect their loss");
            }
            table.leftovers.add(&truncated);
            engine.remove_leftovers(&table, truncated).await
        })
        .await
    }

    /// Adds a tablet with its opened sstables. Returns those that were truncated meanwhile.
    fn add_handed(&self, table: &Table, handed: &Handed, opened: Vec<Opened>) -> Vec<SstablePath> {
        let (mut sstables, mut truncated) = (Vec::new(), Vec::new());
        for (place, intervals, sstable) in opened {
            match (table.loading.end(&place), sstable) {
                (false, _) => truncated.push(place),
                (true, Ok(sstable)) => sstables.push(Attached::new(sstable, intervals)),
                (true, Err(error)) => {
                    let why = format!("it cannot be opened, and its table cannot be read: {error}");
                    let file = place.path(Component::Data);
                    table.unreadable.add(place, Corrupt { file, offset: 0, why });
                }
            }
        }
        let known = table.unreadable.places();
        for (place, why) in handed.unreadable.iter().filter(|(place, _)| !known.contains(place)) {
            table.unreadable.add(place.clone(), why.clone());
        }
        let TabletRange { id, range } = handed.tablet.clone();
        let slot = self.registry().take_slot(handed.table);
        let tablet = Tablet::new(id, range, slot, self.pool().clone(), self.rows().clone(), SstableSet::default());
        tablet.tablet_counter_id.set(handed.tablet_counter_id);
        tablet.earlier_logs.replace(handed.earlier_logs.clone());
        self.shard_moves().add_logs(&handed.earlier_logs);
        tablet.replace(&[], sstables);
        table.add_tablet(tablet);
        self.shard_moves().arrive(handed.table, &handed.tablet);
        metrics::add(&self.counters().tablets_taken_over, 1);
        self.compactions().wake();
        truncated
    }
}

/// Runs `f` with the engine of another shard, unless that shard has stopped.
async fn on_shard<R, F>(
    shard: ShardId,
    engines: PerShard<Engine>,
    f: impl FnOnce(Rc<Engine>) -> F + Send + 'static,
) -> Result<R, EngineError>
where
    R: Send + 'static,
    F: Future<Output = R> + 'static,
{
    let run = move || async move {
        match engines.try_get() {
            Some(engine) => Ok(f(engine).await),
            None => Err(EngineError::Cancelled),
        }
    };
    rt::shard::call(shard, run).await
}

impl Handed {
    fn places(&self) -> Vec<SstablePath> {
        self.sstables.iter().map(|(place, _)| place.clone()).collect()
    }
}
