//! The statement caches of a shard: texts under their ids, with the plans made from them.
//!
//! The id of a prepared statement is the MD5 of the keyspace, the text, the dialect, and the types
//! of the bind variables. The default dialect is left out. So it is the same on every shard and
//! node, and after a restart.
//!
//! The types are part of the id for this reason: a driver that prepares a statement again sends the
//! same bytes again. A later table of the same name may have other types, so its statements must
//! have another id. Otherwise values bound for the old types would reach the new table.
//!
//! ALTER of a column's type keeps old values valid, and drivers fail if a statement that they
//! prepare again gets another id. So the id uses the types with which the columns were created
//! (`schema/first_types.rs`).
//!
//! When the cache is full, it evicts an eighth of its limit at once, least recently used statements
//! first. So the cost of finding them is spread over many insertions. The weight of a statement is
//! the memory of its text and its plan (`footprint`).

use crate::api::{ClientState, ColumnSpec, MetadataId};
use crate::dialect::Dialect;
use crate::footprint::Footprint;
use crate::plan::{Plan, Planned};
use cluster::Metadata;
use md5::{Digest, Md5};
use model::CqlType;
use rt::hash::HashMap;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

/// A statement's id.
pub type StatementId = [u8; 16];

/// The memory of a statement in the cache's maps: entries and control bytes. Half to seven eighths
/// of the slots are in use.
const PLACE: usize =
    (size_of::<(StatementId, Rc<CachedStatement>)>() + size_of::<(StatementId, StatementId)>() + 2) * 3 / 2;
/// The estimated size of a syntax tree relative to its text, for plans that keep the tree.
const TREE_BY_TEXT: usize = 4;

/// The id of a text in a session with this keyspace and dialect.
pub fn id_of(keyspace: Option<&str>, text: &str, dialect: Dialect) -> StatementId {
    hash_of(keyspace, text, dialect).finalize().into()
}

fn hash_of(keyspace: Option<&str>, text: &str, dialect: Dialect) -> Md5 {
    let mut hash = Md5::new();
    hash.update(keyspace.unwrap_or_default().as_bytes());
    hash.update(text.as_bytes());
    if let Some(suffix) = dialect.id_suffix() {
        hash.update([suffix]);
    }
    hash
}

/// The id of a prepared statement. `variables` have the types that count for the id.
///
/// A user type is hashed by its name and its identity: ALTER TYPE must not change the id, but a
/// type that is dropped and created again must. Types of release 0.1.0 have no identity, so the ids
/// of statements with such variables also include the ids of their tables.
///
/// The ids that a dropped table has retired are not used again for later tables of its name.
pub fn prepared_id(
    keyspace: Option<&str>,
    text: &str,
    dialect: Dialect,
    variables: &[ColumnSpec],
    planned: &Planned,
    metadata: &Metadata,
) -> StatementId {
    let mut hash = hash_of(keyspace, text, dialect);
    let mut has_user_type = false;
    for variable in variables {
        has_user_type |= variable.ty.any(&mut |ty| matches!(ty, CqlType::Udt(_)));
        hash.update([0]);
        hash.update(variable.ty.to_string().as_bytes());
    }
    planned.user_types.iter().for_each(|identity| hash.update(identity.as_bytes()));
    if has_user_type {
        planned.tables.iter().for_each(|(table, _)| hash.update(table.as_bytes()));
    }
    for table in planned.tables.iter().filter_map(|(id, _)| metadata.table_by_id(*id)) {
        if let Some(salt) = metadata.id_salt(&table.schema.keyspace, &table.schema.name) {
            hash.update(salt.as_bytes());
        }
    }
    hash.finalize().into()
}

/// A statement in the cache.
pub struct CachedStatement {
    /// The session's keyspace when it was prepared.
    pub keyspace: Option<Box<str>>,
    /// Its text.
    pub text: Box<str>,
    /// The dialect it is planned with.
    pub dialect: Dialect,
    plan: RefCell<Option<Rc<Planned>>>,
    /// The connections that prepared the statement with its current plan. Recorded only if that
    /// plan differs from an earlier plan that connections prepared.
    informed: RefCell<Option<Box<Informed>>>,
    changed: Cell<Changed>,
    /// The columns of the result that clients know from another shard. Cleared when the statement
    /// is planned here.
    known_elsewhere: Cell<Option<MetadataId>>,
    used: Cell<u64>,
    /// Its memory in bytes.
    weight: Cell<usize>,
}

/// Keyed by the connection's identity, because a request that names a keyspace has its own
/// `ClientState`.
type Informed = HashMap<*const (), Weak<()>>;

/// How the current plan differs from earlier plans that connections may have prepared. In ascending
/// order of severity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Changed {
    /// No difference.
    Nothing,
    /// The columns of the result differ.
    Result,
    /// The table, or the types of the bind variables, differ.
    Variables,
}

impl Footprint for CachedStatement {
    fn footprint(&self) -> usize {
        let plan = self.plan.borrow();
        let tree = match plan.as_ref().map(|planned| &planned.plan) {
            Some(Plan::Truncate(_) | Plan::Describe(_) | Plan::Schema(_)) => self.text.len() * TREE_BY_TEXT,
            _ => 0,
        };
        self.keyspace.footprint() + self.text.footprint() + plan.footprint() + tree
    }
}

impl CachedStatement {
    /// The latest plan, which may be outdated.
    #[inline]
    pub fn plan(&self) -> Option<Rc<Planned>> {
        self.plan.borrow().clone()
    }

    /// Whether all variables have the same types as in the current plan, so that values bound for
    /// it keep their meaning. A user type that was dropped and created again is another type.
    pub fn has_same_types(&self, plan: &Planned) -> bool {
        let same = |before: &Rc<Planned>| types_of(before).eq(types_of(plan)) && before.user_types == plan.user_types;
        self.plan.borrow().as_ref().is_some_and(same)
    }

    /// Sets a new plan, and records how it differs from the previous one.
    fn set_plan(self: &Rc<Self>, plan: Rc<Planned>) {
        let mut kept = self.plan.borrow_mut();
        if kept.is_none() && self.has_changed() {
            // No connection knows this plan, whatever it prepared before the last plan was dropped.
            plan.result.altered.set(true);
            *self.informed.borrow_mut() = None;
        }
        if self.known_elsewhere.take().is_some_and(|known| known != plan.result.id()) {
            plan.result.altered.set(true);
            self.changed.set(self.changed.get().max(Changed::Result));
        }
        if let Some(before) = &*kept {
            let others = before.result.id() != plan.result.id();
            plan.result.altered.set(others || before.result.altered.get());
            let rebound = !same_tables(before, &plan) || !types_of(before).eq(types_of(&plan));
            let changed = match (rebound, others) {
                (true, _) => Changed::Variables,
                (false, true) => Changed::Result,
                (false, false) => Changed::Nothing,
            };
            if changed != Changed::Nothing {
                *self.informed.borrow_mut() = None;
                self.changed.set(self.changed.get().max(changed));
            }
        }
        *kept = Some(plan);
        drop(kept);
        self.weigh();
    }

    /// Whether the plan differs from an earlier plan that some connection may have prepared.
    #[inline]
    pub fn has_changed(&self) -> bool {
        self.changed.get() != Changed::Nothing
    }

    /// Whether a connection must prepare the statement again before it executes it. A connection
    /// must do so once after each change of the table or of the types of variables. After a change
    /// of the result's columns, it must do so only if it relies on the columns that it knows.
    #[cold]
    pub fn must_prepare(&self, client: &Rc<ClientState>, skip_metadata: bool) -> bool {
        (self.changed.get() == Changed::Variables || skip_metadata) && !self.inform(client)
    }

    /// Records that the connection gets the current plan. Returns whether it had it already.
    pub fn inform(&self, client: &Rc<ClientState>) -> bool {
        let mut informed = self.informed.borrow_mut();
        let informed = informed.get_or_insert_default();
        let known = informed.contains_key(&Rc::as_ptr(&client.identity));
        if !known {
            informed.retain(|_, one| one.strong_count() > 0);
            informed.insert(Rc::as_ptr(&client.identity), Rc::downgrade(&client.identity));
        }
        known
    }

    fn weigh(self: &Rc<Self>) {
        self.weight.set(PLACE + self.footprint());
    }
}

fn same_tables(a: &Planned, b: &Planned) -> bool {
    a.tables.iter().map(|(table, _)| table).eq(b.tables.iter().map(|(table, _)| table))
}

fn types_of(planned: &Planned) -> impl Iterator<Item = &CqlType> {
    planned.variables.columns.iter().map(|variable| &variable.ty)
}

/// Metrics of a statement cache.
#[derive(Clone, Copy, Default, Debug)]
pub struct CacheMetrics {
    /// The number of statements.
    pub statements: usize,
    /// Their memory in bytes.
    pub bytes: usize,
    /// The limit of that memory in bytes.
    pub limit: usize,
    /// Statements evicted so far because the cache was full.
    pub evicted: u64,
}

/// Statements by id, with a limit on their memory.
pub struct Cache {
    by_id: HashMap<StatementId, Rc<CachedStatement>>,
    /// The id of the statement for each id of a text alone, so that PREPARE of a known text need
    /// not plan it.
    texts: HashMap<StatementId, StatementId>,
    weight: usize,
    limit: usize,
    clock: Cell<u64>,
    evicted: u64,
}

impl Cache {
    /// An empty cache with a limit of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        let (by_id, texts) = (HashMap::default(), HashMap::default());
        Cache { by_id, texts, weight: 0, limit, clock: Cell::new(0), evicted: 0 }
    }

    /// The statement with this id. Counts as a use.
    #[inline]
    pub fn get(&self, id: &StatementId) -> Option<Rc<CachedStatement>> {
        let kept = self.by_id.get(id)?;
        self.clock.set(self.clock.get() + 1);
        kept.used.set(self.clock.get());
        Some(kept.clone())
    }

    /// Inserts a statement. Replaces an earlier one with the same id.
    pub fn insert(
        &mut self,
        id: StatementId,
        keyspace: Option<&str>,
        text: &str,
        dialect: Dialect,
        plan: Option<Rc<Planned>>,
    ) -> Rc<CachedStatement> {
        self.clock.set(self.clock.get() + 1);
        let kept = Rc::new(CachedStatement {
            keyspace: keyspace.map(Box::from),
            text: text.into(),
            dialect,
            plan: RefCell::new(plan),
            informed: RefCell::default(),
            changed: Cell::new(Changed::Nothing),
            known_elsewhere: Cell::default(),
            used: Cell::new(self.clock.get()),
            weight: Cell::default(),
        });
        kept.weigh();
        self.weight += kept.weight.get();
        if let Some(before) = self.by_id.insert(id, kept.clone()) {
            self.weight -= before.weight.get();
        }
        self.evict();
        kept
    }

    /// Inserts a statement that was planned on another shard. Clients learned there about a result
    /// with the columns `result`.
    pub fn insert_text(
        &mut self,
        id: StatementId,
        keyspace: Option<&str>,
        text: &str,
        dialect: Dialect,
        result: MetadataId,
    ) {
        self.insert(id, keyspace, text, dialect, None).known_elsewhere.set(Some(result));
    }

    /// Sets a new plan for a statement that was found here under this id. It may have been evicted
    /// since.
    pub fn set_plan(&mut self, id: &StatementId, kept: &Rc<CachedStatement>, plan: Rc<Planned>) {
        let before = kept.weight.get();
        kept.set_plan(plan);
        if self.by_id.get(id).is_some_and(|there| Rc::ptr_eq(there, kept)) {
            debug_assert!(self.weight >= before, "the bytes of each statement are counted");
            self.weight = self.weight - before + kept.weight.get();
            self.evict();
        }
    }

    /// The statement that was last prepared with the text of this id.
    pub fn of_text(&self, text: &StatementId) -> Option<(StatementId, Rc<CachedStatement>)> {
        let id = *self.texts.get(text)?;
        self.get(&id).map(|kept| (id, kept))
    }

    /// Records that the text with id `text` is prepared under `id`.
    pub fn note_text(&mut self, text: StatementId, id: StatementId) {
        self.texts.insert(text, id);
    }

    /// Drops the plan of a statement that was found here under this id.
    pub fn drop_plan(&mut self, id: &StatementId, kept: &Rc<CachedStatement>) {
        let before = kept.weight.get();
        if kept.plan.borrow_mut().take().is_some() {
            // The connections knew the plan, but no connection knows that it was removed.
            *kept.informed.borrow_mut() = None;
        }
        kept.changed.set(Changed::Variables);
        kept.weigh();
        if self.by_id.get(id).is_some_and(|there| Rc::ptr_eq(there, kept)) {
            self.weight = self.weight - before + kept.weight.get();
        }
    }

    /// If the cache is over its limit, evicts the least recently used statements until an eighth of
    /// the limit is free. The newest one is never evicted.
    fn evict(&mut self) {
        if self.weight <= self.limit {
            return;
        }
        let mut by_age: Vec<(u64, StatementId)> = self.by_id.iter().map(|(id, kept)| (kept.used.get(), *id)).collect();
        by_age.sort_unstable();
        by_age.pop();
        for (_, id) in by_age {
            if self.weight <= self.limit - self.limit / 8 {
                break;
            }
            if let Some(kept) = self.by_id.remove(&id) {
                self.weight -= kept.weight.get();
                self.evicted += 1;
            }
        }
        let weight: usize = self.by_id.values().map(|kept| kept.weight.get()).sum();
        debug_assert_eq!(self.weight, weight, "the bytes of each statement are counted");
        debug_assert!(self.weight <= self.limit || self.by_id.len() <= 1, "the cache stays within its limit");
        self.texts.retain(|_, id| self.by_id.contains_key(id));
    }

    /// The number of statements.
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Whether the cache is empty.
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Its metrics.
    pub fn metrics(&self) -> CacheMetrics {
        CacheMetrics { statements: self.by_id.len(), bytes: self.weight, limit: self.limit, evicted: self.evicted }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ResultMetadata;
    use smallvec::SmallVec;

    #[test]
    fn ids_are_those_of_keyspace_and_text() {
        let id = |keyspace, text| id_of(keyspace, text, Dialect::default());
        assert_eq!(id(None, "ab"), id(Some("a"), "b"));
        assert_ne!(id(Some("ks"), "SELECT 1"), id(None, "SELECT 1"));
        assert_eq!(model::hex(&id(None, "")), "d41d8cd98f00b204e9800998ecf8427e");
    }

    #[test]
    fn each_dialect_has_ids_of_its_own() {
        let mut ids: Vec<StatementId> = [(true, true), (true, false), (false, true), (false, false)]
            .map(|(names_are_one, in_is_upper)| id_of(None, "SELECT 1", Dialect { names_are_one, in_is_upper }))
            .into();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 4);
    }

    #[test]
    fn the_least_used_go_first() {
        let one = Cache::new(0).insert([0; 16], None, "x", Dialect::default(), None).weight.get();
        let mut cache = Cache::new(8 * one);
        for n in 0..8u8 {
            cache.insert([n; 16], None, "x", Dialect::default(), None);
        }
        assert_eq!(cache.len(), 8);
        assert!(cache.get(&[0; 16]).is_some());
        cache.insert([8; 16], None, "x", Dialect::default(), None);
        assert!(cache.get(&[0; 16]).is_some(), "it was used just before");
        assert!(cache.get(&[1; 16]).is_none());
        assert!(cache.get(&[8; 16]).is_some());
        assert_eq!(cache.metrics().evicted, 9 - cache.len() as u64);
        assert!(cache.weight <= cache.limit);
    }

    #[test]
    fn a_new_plan_weighs_what_it_is() {
        let planned = |bytes: usize| {
            let (variables, result) = <(Rc<ResultMetadata>, Rc<ResultMetadata>)>::default();
            let plan = Plan::Use("x".repeat(bytes).into());
            Rc::new(Planned {
                plan,
                variables,
                repeated: Box::default(),
                in_lists: Box::default(),
                has_parts: false,
                partition_key_markers: Box::default(),
                result,
                user_types: Box::default(),
                tables: SmallVec::new(),
            })
        };
        let mut cache = Cache::new(64 << 10);
        let insert = |cache: &mut Cache, n| cache.insert([n; 16], None, "x", Dialect::default(), Some(planned(1024)));
        let (first, second) = (insert(&mut cache, 1), insert(&mut cache, 2));
        let before = cache.weight;
        cache.set_plan(&[2; 16], &second, planned(32 << 10));
        assert_eq!(cache.weight, before + (31 << 10));
        cache.set_plan(&[2; 16], &second, planned(64 << 10));
        assert!(cache.get(&[1; 16]).is_none(), "it had to make room");
        let before = cache.weight;
        cache.set_plan(&[1; 16], &first, planned(32 << 10));
        assert_eq!(cache.weight, before, "it weighs here no more");
    }

    #[test]
    fn the_same_id_again_weighs_once() {
        let mut cache = Cache::new(1 << 20);
        for _ in 0..10 {
            cache.insert([1; 16], Some("ks"), "SELECT", Dialect::default(), None);
        }
        let one = Cache::new(0).insert([1; 16], Some("ks"), "SELECT", Dialect::default(), None);
        assert_eq!(cache.weight, one.weight.get());
    }
}
