//! Statements kept on a shard: their texts under their ids, with the plans made of them.
//!
//! The id is the MD5 of keyspace and text, so it is the same on every shard and node and after a restart. When the cache is full,
//! those that were not used for the longest time go, a part of them at once, so that finding them costs little each time.

use crate::plan::Planned;
use md5::{Digest, Md5};
use rt::hash::HashMap;
use std::cell::{Cell, RefCell};
use std::rc::Rc;

/// A statement's id.
pub type StatementId = [u8; 16];

/// What a plan is taken to weigh beside its text, in bytes.
const PLAN_WEIGHT: usize = 2048;

/// The id of a text prepared in a session with this keyspace.
pub fn id_of(keyspace: Option<&str>, text: &str) -> StatementId {
    let mut hash = Md5::new();
    hash.update(keyspace.unwrap_or_default().as_bytes());
    hash.update(text.as_bytes());
    hash.finalize().into()
}

/// A kept statement.
pub struct Kept {
    /// The session's keyspace when it was prepared.
    pub keyspace: Option<Rc<str>>,
    /// Its text.
    pub text: Rc<str>,
    plan: RefCell<Option<Rc<Planned>>>,
    used: Cell<u64>,
}

impl Kept {
    /// Its plan as it was made last; perhaps outdated.
    #[inline]
    pub fn plan(&self) -> Option<Rc<Planned>> {
        self.plan.borrow().clone()
    }

    /// Keeps a new plan.
    pub fn set_plan(&self, plan: Rc<Planned>) {
        *self.plan.borrow_mut() = Some(plan);
    }

    fn weight(&self) -> usize {
        self.text.len() * 4 + PLAN_WEIGHT
    }
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
        plan: Option<Rc<Planned>>,
    ) -> Rc<Kept> {
        self.clock.set(self.clock.get() + 1);
        let kept = Rc::new(Kept {
            keyspace: keyspace.map(Rc::from),
            text: text.into(),
            plan: RefCell::new(plan),
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

    /// How many had to go so far.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_of_keyspace_and_text() {
        assert_eq!(id_of(None, "ab"), id_of(Some("a"), "b"));
        assert_ne!(id_of(Some("ks"), "SELECT 1"), id_of(None, "SELECT 1"));
        let hex: String = id_of(None, "").iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "d41d8cd98f00b204e9800998ecf8427e");
    }

    #[test]
    fn the_least_used_go_first() {
        let mut cache = Cache::new(8 * (PLAN_WEIGHT + 4));
        for n in 0..8u8 {
            cache.insert([n; 16], None, "x", None);
        }
        assert_eq!(cache.len(), 8);
        assert!(cache.get(&[0; 16]).is_some());
        cache.insert([8; 16], None, "x", None);
        assert!(cache.get(&[0; 16]).is_some(), "it was used just before");
        assert!(cache.get(&[1; 16]).is_none());
        assert!(cache.get(&[8; 16]).is_some());
        assert_eq!(cache.evicted(), 9 - cache.len() as u64);
        assert!(cache.weight <= cache.limit);
    }

    #[test]
    fn the_same_id_again_weighs_once() {
        let mut cache = Cache::new(1 << 20);
        for _ in 0..10 {
            cache.insert([1; 16], Some("ks"), "SELECT", None);
        }
        assert_eq!(cache.weight, PLAN_WEIGHT + 24);
    }
}
