//! Adding a table: its sstables are opened and assigned to its tablets.
//!
//! A file that cannot be opened is reported and left alone. Its keys are unknown, so reads of the
//! table fail: without it they would miss rows and return deleted ones. For the same reason
//! nothing of the table is purged.

use crate::datadir::Missing;
use crate::deletion_log::Incomplete;
use crate::engine::{Engine, TabletRange};
use crate::error::EngineError;
use crate::table::{Attached, Listed, SstableSet, Table, Tablet, Unreadable};
use crate::table_dir::{
    CleanDirectory, FoundSstables, ListedName, ListedNames, Prepared, ReplayFilters, SstableKeys, SstableLists,
    finish_interrupted, is_absent, is_sealed, is_truncated, names_in, sealed_places, sstable_list,
};
use model::TableId;
use model::key::DecoratedKey;
use model::schema::TableSchema;
use rt::ShardId;
use sstable::{Component, Corrupt, Sstable, SstablePath};
use std::path::Path;
use std::rc::Rc;

/// The content of a table's directory for this shard.
pub(crate) struct Opened {
    /// One set per tablet, in the order in which the tablets were given.
    pub sets: Vec<SstableSet>,
    pub unreadable: Unreadable,
    /// See [`FoundSstables`].
    pub foreign: Vec<SstableKeys>,
    /// By the shard that wrote them.
    pub filters: Vec<(ShardId, ReplayFilters)>,
    /// Missing sstables whose loss is accepted.
    pub given_up: Vec<SstablePath>,
    /// The sstables that this shard has listed.
    pub listed: ListedNames,
}

impl Opened {
    /// Reports a listed sstable of which no file is left.
    fn is_missing(&mut self, place: SstablePath) {
        // Several shards may find it. The one that has listed it reports it.
        if self.listed.contains(&ListedName::of(&place)) {
            tracing::error!(generation = %place.generation, dir = %place.dir.display(),
                "all files of an sstable are missing: its table cannot be read until they are restored, or the node starts with --accept-loss");
        }
        let why = format!(
            "all files of the sstable {} are missing, and its table cannot be read without it. Restore them as they were \
             when the node stopped, and start again; or start once with --accept-loss: the rows that only this sstable held \
             are then lost; or TRUNCATE the table",
            place.generation
        );
        let file = place.path(Component::Data);
        self.unreadable.add(place, Corrupt { file, offset: 0, why });
    }

    /// Accepts the loss of listed sstables of which no file is left.
    fn give_up(&mut self, missing: Vec<SstablePath>) {
        for place in missing.iter().filter(|place| self.listed.contains(&ListedName::of(place))) {
            tracing::error!(generation = %place.generation, dir = %place.dir.display(),
                "all files of an sstable are missing: starting without the rows that only it held, because accept_loss is set");
        }
        self.given_up = missing;
    }

    /// Reports an sstable that cannot be opened. `file` names it in errors.
    fn cannot_be_read(&mut self, place: &SstablePath, file: Component, error: &str) {
        tracing::error!(generation = %place.generation, dir = %place.dir.display(), error,
            "an sstable cannot be opened: its table cannot be read until the sstable is restored, or its files are moved away and the node starts with --accept-loss");
        let why = format!("its table cannot be read without it, and it could not be opened at start: {error}");
        self.unreadable.add(place.clone(), Corrupt { file: place.path(file), offset: 0, why });
    }
}

impl Engine {
    /// Adds a table with the tablets that this shard has, and opens their sstables.
    ///
    /// An sstable outside of all tablets of this shard belongs to another shard. An sstable in
    /// several tablets is an error ([`Engine::reshard`] splits them). Files that cannot be opened
    /// are logged, left alone, and counted. After an error the table is not added, and the call
    /// may be repeated. A table without a directory needs no file descriptor.
    pub async fn add_table(&self, schema: Rc<TableSchema>, tablets: Vec<TabletRange>) -> Result<(), EngineError> {
        let id = schema.id;
        if self.table(id).is_some() {
            return Err(EngineError::TableExists(id));
        }
        let dir = self.table_dir(&schema);
        let mut prepared = self.prepared().borrow_mut().get_mut(&id).map(Prepared::take);
        if self.config().shard == ShardId(0) && !self.is_started() && prepared.is_none() {
            let clean = finish_interrupted(&dir, self.config()).await?;
            let CleanDirectory { places, incomplete, missing, filters, lists } = clean;
            let found = FoundSstables { places, incomplete, missing, filters, lists, ..FoundSstables::default() };
            prepared = Some(Prepared { found, open: Vec::new() });
        }
        let opened = self.open_sstables(&dir, &tablets, prepared).await?;
        let has_sstables = opened.sets.iter().any(|set| set.len() > 0);
        let mut tablets: Vec<Rc<Tablet>> = tablets
            .into_iter()
            .zip(opened.sets)
            .map(|(tablet, set)| {
                let slot = self.registry().take_slot(id);
                Tablet::new(tablet.id, tablet.range, slot, self.pool().clone(), self.rows().clone(), set)
            })
            .collect();
        tablets.sort_by(|a, b| a.range.start.cmp(&b.range.start));
        let listed = Listed::new(opened.listed);
        let table = Table::new(schema, dir, tablets, opened.unreadable, opened.filters, listed);
        table.foreign.replace(opened.foreign);
        table.given_up.replace(opened.given_up);
        table.auto_compaction.set(self.config().auto_compaction);
        self.read_tablet_counter_ids(&table).await?;
        self.list_at_start(&table).await?;
        self.registry().insert(id, table);
        if has_sstables {
            self.compactions().wake();
        }
        Ok(())
    }

    /// Sets a newer version of a table's schema. Unknown tables are ignored.
    pub fn update_schema(&self, schema: Rc<TableSchema>) {
        let Some(table) = self.table(schema.id) else { return };
        let before = table.schema();
        if before.statics.iter().chain(&before.regulars).any(|column| schema.column(column.id).is_none()) {
            self.flush_before_drop(&table, &before);
        }
        table.set_schema(schema);
        self.compactions().wake();
    }

    /// The missing sstables of this shard's tables whose loss this start accepts, until
    /// [`Engine::replay_finished`] ends. Each shard reports all of them.
    pub fn given_up(&self) -> Vec<Missing> {
        let of_table = |table: &Rc<Table>| {
            let (id, given_up) = (table.schema().id, table.given_up.borrow());
            given_up.iter().map(|place| Missing::sstable(&place.path(Component::Data), id)).collect::<Vec<_>>()
        };
        self.all_tables().iter().flat_map(of_table).collect()
    }

    /// What [`Engine::reshard`] found, for [`Engine::expect`] on other shards.
    pub fn found_sstables(&self) -> Vec<(TableId, FoundSstables)> {
        self.prepared().borrow().iter().map(|(table, prepared)| (*table, prepared.found.clone())).collect()
    }

    /// Takes what shard 0 found, so that this shard opens only its own sstables and searches no
    /// directory. It is valid until [`Engine::start`].
    pub fn expect(&self, found: Vec<(TableId, FoundSstables)>) {
        let prepared = found.into_iter().map(|(table, found)| (table, Prepared { found, open: Vec::new() }));
        self.prepared().borrow_mut().extend(prepared);
    }

    /// Opens the sstables of these tablets.
    pub(crate) async fn open_sstables(
        &self,
        dir: &Path,
        tablets: &[TabletRange],
        prepared: Option<Prepared>,
    ) -> Result<Opened, EngineError> {
        let Prepared { found, open } = match prepared {
            Some(prepared) => prepared,
            None if self.is_started() && is_absent(dir).await? => {
                Prepared { found: FoundSstables::default(), open: Vec::new() }
            }
            None => {
                let names = names_in(dir).await?;
                let filters = ReplayFilters::read_all(dir, &names, self.config().host_id).await?;
                // Other shards may be changing their lists.
                let own: Vec<_> =
                    names.iter().filter(|name| **name == sstable_list::name(self.config().shard)).cloned().collect();
                let lists = SstableLists::read_all(dir, &own, self.config().host_id).await?;
                let places = sealed_places(dir, &names);
                // No other shard removes sstables that this one lists.
                let mut missing = lists.missing(dir, &places);
                missing.retain(|place| !is_truncated(&filters, place));
                let found = FoundSstables { places, missing, filters, lists, ..FoundSstables::default() };
                Prepared { found, open: Vec::new() }
            }
        };
        let sets = vec![SstableSet::default(); tablets.len()];
        let mut opened = Opened {
            sets,
            unreadable: Unreadable::default(),
            foreign: found.foreign,
            filters: found.filters,
            given_up: Vec::new(),
            listed: found.lists.of(self.config().shard),
        };
        match self.config().accept_loss {
            true => opened.give_up(found.missing),
            false => found.missing.into_iter().for_each(|place| opened.is_missing(place)),
        }
        for Incomplete { place, why } in found.incomplete {
            let error = format!("its TOC.txt is missing and cannot be rebuilt: {why}");
            opened.cannot_be_read(&place, Component::Toc, &error);
        }
        for place in found.places {
            if is_truncated(&opened.filters, &place) {
                continue;
            }
            let is_it = |other: &SstablePath| other.generation == place.generation && *other == place;
            let known = found.keys.iter().find(|known| is_it(&known.place));
            if known.is_some_and(|known| owner(tablets, &known.first, &known.last) == Ok(None)) {
                continue;
            }
            let opening = async {
                match open.iter().find(|open| is_it(open.place())) {
                    Some(open) => Ok(open.clone()),
                    None => Sstable::open_at(&place, self.cache()).await,
                }
            };
            let sstable = match opening.await {
                Ok(sstable) => sstable,
                // The sstable itself may be intact: the next start can serve it.
                Err(error) if error.is_of_process() => return Err(error.into()),
                // A compaction or DROP of another shard has just removed it: TOC.txt is removed
                // first.
                Err(_) if !is_sealed(&place).await => continue,
                Err(error) => {
                    opened.cannot_be_read(&place, Component::Data, &error.to_string());
                    continue;
                }
            };
            let Some(i) = owner(tablets, sstable.first_key(), sstable.last_key())
                .map_err(|()| EngineError::SpansTablets(place.path(Component::Data)))?
            else {
                continue;
            };
            self.saw_timestamp(sstable.stats().max_timestamp);
            let attached = Attached::open(sstable, self.config().host_id);
            opened.sets[i] = opened.sets[i].replace(&[], [attached]);
        }
        Ok(opened)
    }
}

/// The tablet that holds both keys. `None` if they are outside of all tablets; an error if they
/// are in different ones.
fn owner(tablets: &[TabletRange], first: &DecoratedKey, last: &DecoratedKey) -> Result<Option<usize>, ()> {
    let holds = |key| tablets.iter().position(|tablet| tablet.range.contains(key));
    let (a, b) = (holds(first), holds(last));
    let within = |tablet: &TabletRange| {
        tablet.range.start.cmp_key(first.token, &first.key).is_gt()
            && tablet.range.end.cmp_key(last.token, &last.key).is_lt()
    };
    if a != b || (a.is_none() && tablets.iter().any(within)) { Err(()) } else { Ok(a) }
}
