//! The state of admissions on shard 0: this node's own search for its cluster, and its admissions
//! of other nodes.

use super::discovery::Discovery;
use super::locate::Locator;
use super::write_marks::WriteMarks;
use crate::metadata::ClusterShards;
use model::id::HostId;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

/// The maximum number of hosts with a remembered reason for refusal.
const MOST_REPORTED: usize = 256;

/// The state of this node's own search, and of its admissions of other nodes. On shard 0.
pub struct Admission {
    pub(super) shards: ClusterShards,
    pub(super) locator: Rc<Locator>,
    pub(super) marks: Rc<WriteMarks>,
    /// The running search of this node.
    pub(super) searching: RefCell<Option<Discovery>>,
    /// This node can admit others: all of its shards follow changes of the metadata.
    is_open: Cell<bool>,
    /// The last logged reason why a node is not admitted, by host.
    reported: RefCell<BTreeMap<HostId, String>>,
}

impl Admission {
    /// The state of a node that admits no others yet.
    pub fn new(shards: ClusterShards, marks: Rc<WriteMarks>) -> Rc<Admission> {
        Rc::new(Admission {
            shards,
            locator: Rc::default(),
            marks,
            searching: RefCell::default(),
            is_open: Cell::new(false),
            reported: RefCell::default(),
        })
    }

    /// The addresses that other nodes named.
    pub fn locator(&self) -> &Rc<Locator> {
        &self.locator
    }

    /// The write marks of this node and of others.
    pub fn marks(&self) -> &Rc<WriteMarks> {
        &self.marks
    }

    /// From now on this node admits others, because all of its shards follow changes of the
    /// metadata.
    pub fn open(&self) {
        self.is_open.set(true);
    }

    pub(super) fn is_open(&self) -> bool {
        self.is_open.get()
    }

    /// Whether this reason differs from the last logged one.
    pub(super) fn is_news(&self, host: HostId, why: &str) -> bool {
        let mut reported = self.reported.borrow_mut();
        // Unknown host ids may be invented, so the map is bounded.
        if reported.len() >= MOST_REPORTED && !reported.contains_key(&host) {
            reported.clear();
        }
        reported.insert(host, why.to_owned()).is_none_or(|before| before != why)
    }
}
