//! Statements kept on a shard: their texts under their ids, with the plans made of them.
//!
//! The id is the MD5 of keyspace and text (and of the dialect, if it is not the default one), so it is the same on every shard and node and after a restart. When the cache is full,
//! those that were not used for the longest time go, a part of them at once, so that finding them costs little each time.

use crate::api::ClientState;
use crate::dialect::Dialect;
use crate::plan::Planned;
use md5::{Digest, Md5};
use rt::hash::HashMap;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};

/// A statement's id.
pub type StatementId = [u8; 16];

/// What a plan is taken to weigh beside its text, in bytes.
const PLAN_WEIGHT: usize = 2048;

/// The id of a text prepared in a session with this keyspace under this dialect.
pub fn id_of(keyspace: Option<&str>, text: &str, dialect: Dialect) -> StatementId {
    let mut hash = Md5::new();
    hash.update(keyspace.unwrap_or_default().as_bytes());
    hash.update(text.as_bytes());
    if let Some(mark) = dialect.mark() {
        hash.update([mark]);
    }
    hash.finalize().into()
}

/// A kept statement.
pub struct Kept {
    /// The session's keyspace when it was prepared.
    pub keyspace: Option<Rc<str>>,
    /// Its text.
    pub text: Rc<str>,
    /// How it is understood.
    pub dialect: Dialect,
    plan: RefCell<Option<Rc<Planned>>>,
    /// The connections that were told the columns of the plan; empty unless these have changed since others were told of them.
    told: RefCell<HashMap<*const ClientState, Weak<ClientState>>>,
    used: Cell<u64>,
}

impl Kept {
    /// Its plan as it was made last; perhaps outdated.
    #[inline]
    pub fn plan(&self) -> Option<Rc<Planned>> {
        self.plan.borrow().clone()
    }

    /// Keeps a new plan. Whoever got the columns of the one before is told when they are others now.
    pub fn set_plan(&self, plan: Rc<Planned>) {
        let mut kept = self.plan.borrow_mut();
        if let Some(before) = &*kept {
            let others = before.result.id() != plan.result.id();
            plan.result.altered.set(others || before.result.altered.get());
            if others {
                self.told.borrow_mut().clear();
            }
        }
        *kept = Some(plan);
    }

    /// Notes that a connection is told the columns of the plan. Says whether it had been.
    pub fn tell(&self, client: &Rc<ClientState>) -> bool {
        let mut told = self.told.borrow_mut();
        let known = told.contains_key(&Rc::as_ptr(client));
        if !known {
            told.retain(|_, one| one.strong_count() > 0);
            told.insert(Rc::as_ptr(client), Rc::downgrade(client));
        }
        known
    }

    fn weight(&self) -> usize {
        self.text.len() * 4 + PLAN_WEIGHT
    }
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
    weight: usize,
    limit: usize,
    clock: Cell<u64>,
    evicted: u64,
}

impl Cache {
    /// An empty cache of statements of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Cache { kept: HashMap::default(), weight: 0, limit, clock: Cell::new(0), evicted: 0 }
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
            keyspace: keyspace.map(Rc::from),
            text: text.into(),
            dialect,
            plan: RefCell::new(plan),
            told: RefCell::default(),
            used: Cell::new(self.clock.get()),
        });
        self.weight += kept.weight();
        if let Some(before) = self.kept.insert(id, kept.clone()) {
            self.weight -= before.weight();
        }
        if self.weight > self.limit {
            self.evict();
        }
        kept
    }

    /// Drops the least recently used until an eighth of the limit is free; the newest always stays.
    fn evict(&mut self) {
        let mut by_age: Vec<(u64, StatementId)> = self.kept.iter().map(|(id, kept)| (kept.used.get(), *id)).collect();
        by_age.sort_unstable();
        by_age.pop();
        for (_, id) in by_age {
            if self.weight <= self.limit - self.limit / 8 {
                break;
            }
            if let Some(kept) = self.kept.remove(&id) {
                self.weight -= kept.weight();
                self.evicted += 1;
            }
        }
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
        let mut cache = Cache::new(8 * (PLAN_WEIGHT + 4));
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
    fn the_same_id_again_weighs_once() {
        let mut cache = Cache::new(1 << 20);
        for _ in 0..10 {
            cache.insert([1; 16], Some("ks"), "SELECT", Dialect::default(), None);
        }
        assert_eq!(cache.weight, PLAN_WEIGHT + 24);
    }
}
