//! Statements kept on a shard: their texts under their ids, with the plans made of them.
//!
//! The id of a prepared statement is the MD5 of the keyspace, the text, the dialect if it is not the default one, and the types of
//! the bind variables. So it is the same on every shard and node and after a restart. Values that a client bound to the types of a
//! table never reach a later table of the same name with other types: drivers send the same bytes again after they have prepared a
//! statement again, so the id must be another one then. ALTER of a column's type keeps old values valid, and drivers fail if a
//! statement that they prepare again has another id. So the types that count are those with which the columns were created
//! (`schema/first_types.rs`).
//!
//! When the cache is full, the least recently used statements are evicted, an eighth of the limit at once, so that finding them
//! costs little each time. What one weighs is what it and its plan take in memory (`footprint`).

use crate::api::{ClientState, ColumnSpec, MetadataId};
use crate::dialect::Dialect;
use crate::footprint::Footprint;
use crate::plan::{Plan, Planned};
use md5::{Digest, Md5};
use model::CqlType;
use rt::hash::HashMap;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

/// A statement's id.
pub type StatementId = [u8; 16];

/// What a statement takes in the maps of its cache: places and their marks, of which between half and seven eighths are taken.
const PLACE: usize = (size_of::<(StatementId, Rc<Kept>)>() + size_of::<(StatementId, StatementId)>() + 2) * 3 / 2;
/// How much longer than a text its tree is taken to be, where a plan keeps that.
const TREE_BY_TEXT: usize = 4;

/// The id of a text in a session with this keyspace under this dialect.
pub fn id_of(keyspace: Option<&str>, text: &str, dialect: Dialect) -> StatementId {
    hash_of(keyspace, text, dialect).finalize().into()
}

fn hash_of(keyspace: Option<&str>, text: &str, dialect: Dialect) -> Md5 {
    let mut hash = Md5::new();
    hash.update(keyspace.unwrap_or_default().as_bytes());
    hash.update(text.as_bytes());
    if let Some(mark) = dialect.mark() {
        hash.update([mark]);
    }
    hash
}

/// The id of a prepared statement with this plan, whose variables have these types as ids count them. User types count by their
/// names and identities, because ALTER TYPE must not change the id, and a type that is dropped and made again must. Types of
/// release 0.1.0 have no identity, so statements with such variables are bound to the ids of their tables, too.
pub fn prepared_id(
    keyspace: Option<&str>,
    text: &str,
    dialect: Dialect,
    variables: &[ColumnSpec],
    planned: &Planned,
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
    hash.finalize().into()
}

/// A kept statement.
pub struct Kept {
    /// The session's keyspace when it was prepared.
    pub keyspace: Option<Box<str>>,
    /// Its text.
    pub text: Box<str>,
    /// How it is understood.
    pub dialect: Dialect,
    plan: RefCell<Option<Rc<Planned>>>,
    /// The connections that prepared the statement with its current plan. Recorded only if that differs from what others prepared.
    told: RefCell<Option<Box<Told>>>,
    changed: Cell<Changed>,
    /// The columns of the result that clients know from another shard, until it is planned here.
    told_elsewhere: Cell<Option<MetadataId>>,
    used: Cell<u64>,
    /// Bytes.
    weight: Cell<usize>,
}

/// By the identity of the connection: a request that names a keyspace has a state of its own.
type Told = HashMap<*const (), Weak<()>>;

/// How the current plan differs from plans that connections may have prepared before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Changed {
    /// Not at all.
    Nothing,
    /// The columns of the result.
    Result,
    /// The table, or the types of the bind variables.
    Variables,
}

impl Footprint for Kept {
    fn footprint(&self) -> usize {
        let plan = self.plan.borrow();
        let tree = match plan.as_ref().map(|planned| &planned.plan) {
            Some(Plan::Truncate(_) | Plan::Describe(_) | Plan::Schema(_)) => self.text.len() * TREE_BY_TEXT,
            _ => 0,
        };
        self.keyspace.footprint() + self.text.footprint() + plan.footprint() + tree
    }
}

impl Kept {
    /// Its plan as it was made last; perhaps outdated.
    #[inline]
    pub fn plan(&self) -> Option<Rc<Planned>> {
        self.plan.borrow().clone()
    }

    /// Whether all variables have the types that they have in the plan before, so that values bound for it mean the same. A user type
    /// that was made again is another type.
    pub fn has_same_types(&self, plan: &Planned) -> bool {
        let same = |before: &Rc<Planned>| types_of(before).eq(types_of(plan)) && before.user_types == plan.user_types;
        self.plan.borrow().as_ref().is_some_and(same)
    }

    /// Keeps a new plan, and notes how it differs from the one before.
    fn set_plan(self: &Rc<Self>, plan: Rc<Planned>) {
        let mut kept = self.plan.borrow_mut();
        if kept.is_none() && self.has_changed() {
            // Nobody knows this plan, whatever they prepared before the last one was dropped.
            plan.result.altered.set(true);
            *self.told.borrow_mut() = None;
        }
        if self.told_elsewhere.take().is_some_and(|known| known != plan.result.id()) {
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
                *self.told.borrow_mut() = None;
                self.changed.set(self.changed.get().max(changed));
            }
        }
        *kept = Some(plan);
        drop(kept);
        self.weigh();
    }

    /// Whether the plan differs from one that some connection may have prepared.
    #[inline]
    pub fn has_changed(&self) -> bool {
        self.changed.get() != Changed::Nothing
    }

    /// Whether a connection has to prepare the statement again before it executes it: once after each change of the table or of
    /// the types of variables, and after a change of the result's columns if it relies on the columns that it knows.
    #[cold]
    pub fn must_prepare(&self, client: &Rc<ClientState>, skip_metadata: bool) -> bool {
        (self.changed.get() == Changed::Variables || skip_metadata) && !self.tell(client)
    }

    /// Notes that a connection is told of the plan. Says whether it had been.
    pub fn tell(&self, client: &Rc<ClientState>) -> bool {
        let mut told = self.told.borrow_mut();
        let told = told.get_or_insert_default();
        let known = told.contains_key(&Rc::as_ptr(&client.identity));
        if !known {
            told.retain(|_, one| one.strong_count() > 0);
            told.insert(Rc::as_ptr(&client.identity), Rc::downgrade(&client.identity));
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

/// What a cache of statements holds.
#[derive(Clone, Copy, Default, Debug)]
pub struct CacheNumbers {
    /// How many statements.
    pub statements: usize,
    /// What they weigh together, in bytes.
    pub bytes: usize,
    /// What they may weigh.
    pub limit: usize,
    /// How many had to go so far for want of room.
    pub evicted: u64,
}

/// Statements by id, bounded by their weight.
pub struct Cache {
    kept: HashMap<StatementId, Rc<Kept>>,
    /// The ids of statements by the id of their text alone, so that PREPARE of a known text plans nothing.
    texts: HashMap<StatementId, StatementId>,
    weight: usize,
    limit: usize,
    clock: Cell<u64>,
    evicted: u64,
}

impl Cache {
    /// An empty cache of statements of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        let (kept, texts) = (HashMap::default(), HashMap::default());
        Cache { kept, texts, weight: 0, limit, clock: Cell::new(0), evicted: 0 }
    }

    /// The statement of an id.
    #[inline]
    pub fn get(&self, id: &StatementId) -> Option<Rc<Kept>> {
        let kept = self.kept.get(id)?;
        self.clock.set(self.clock.get() + 1);
        kept.used.set(self.clock.get());
        Some(kept.clone())
    }

    /// Keeps a statement, in place of an earlier one of the same id.
    pub fn insert(
        &mut self,
        id: StatementId,
        keyspace: Option<&str>,
        text: &str,
        dialect: Dialect,
        plan: Option<Rc<Planned>>,
    ) -> Rc<Kept> {
        self.clock.set(self.clock.get() + 1);
        let kept = Rc::new(Kept {
            keyspace: keyspace.map(Box::from),
            text: text.into(),
            dialect,
            plan: RefCell::new(plan),
            told: RefCell::default(),
            changed: Cell::new(Changed::Nothing),
            told_elsewhere: Cell::default(),
            used: Cell::new(self.clock.get()),
            weight: Cell::default(),
        });
        kept.weigh();
        self.weight += kept.weight.get();
        if let Some(before) = self.kept.insert(id, kept.clone()) {
            self.weight -= before.weight.get();
        }
        self.evict();
        kept
    }

    /// Keeps a statement that was planned on another shard, where clients learnt of a result with columns of this id.
    pub fn insert_text(
        &mut self,
        id: StatementId,
        keyspace: Option<&str>,
        text: &str,
        dialect: Dialect,
        result: MetadataId,
    ) {
        self.insert(id, keyspace, text, dialect, None).told_elsewhere.set(Some(result));
    }

    /// Gives a new plan to a statement that was found here under this id. Perhaps it had to go since.
    pub fn set_plan(&mut self, id: &StatementId, kept: &Rc<Kept>, plan: Rc<Planned>) {
        let before = kept.weight.get();
        kept.set_plan(plan);
        if self.kept.get(id).is_some_and(|there| Rc::ptr_eq(there, kept)) {
            self.weight = self.weight - before + kept.weight.get();
            self.evict();
        }
    }

    /// The statement that was last prepared with the text of this id.
    pub fn of_text(&self, text: &StatementId) -> Option<(StatementId, Rc<Kept>)> {
        let id = *self.texts.get(text)?;
        self.get(&id).map(|kept| (id, kept))
    }

    /// Notes under which id the text of an id is prepared.
    pub fn note_text(&mut self, text: StatementId, id: StatementId) {
        self.texts.insert(text, id);
    }

    /// Drops the plan of a statement that was found here under this id.
    pub fn drop_plan(&mut self, id: &StatementId, kept: &Rc<Kept>) {
        let before = kept.weight.get();
        if kept.plan.borrow_mut().take().is_some() {
            // The connections knew the plan; none has been told that it is lost.
            *kept.told.borrow_mut() = None;
        }
        kept.changed.set(Changed::Variables);
        kept.weigh();
        if self.kept.get(id).is_some_and(|there| Rc::ptr_eq(there, kept)) {
            self.weight = self.weight - before + kept.weight.get();
        }
    }

    /// Drops the least recently used of too many until an eighth of the limit is free; the newest always stays.
    fn evict(&mut self) {
        if self.weight <= self.limit {
            return;
        }
        let mut by_age: Vec<(u64, StatementId)> = self.kept.iter().map(|(id, kept)| (kept.used.get(), *id)).collect();
        by_age.sort_unstable();
        by_age.pop();
        for (_, id) in by_age {
            if self.weight <= self.limit - self.limit / 8 {
                break;
            }
            if let Some(kept) = self.kept.remove(&id) {
                self.weight -= kept.weight.get();
                self.evicted += 1;
            }
        }
        self.texts.retain(|_, id| self.kept.contains_key(id));
    }

    /// How many statements there are.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// What it holds.
    pub fn numbers(&self) -> CacheNumbers {
        CacheNumbers { statements: self.kept.len(), bytes: self.weight, limit: self.limit, evicted: self.evicted }
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
        let hex: String = id(None, "").iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "d41d8cd98f00b204e9800998ecf8427e");
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
        assert_eq!(cache.numbers().evicted, 9 - cache.len() as u64);
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
