//! The tablets that move between this shard and others of the node: where requests for them are
//! performed. See `table_ops/hand_over.rs` for the steps of such a move.

use super::{Engine, TabletRange};
use crate::commitlog::{Position, same_log};
use crate::memtable::Interval;
use crate::table::Tablet;
use model::TableId;
use model::key::DecoratedKey;
use model::range::PartitionRange;
use rt::sync::{Deadline, GateGuard, Notify};
use rt::time::Duration;
use std::cell::{Cell, RefCell};

/// How long a snapshot waits for tablets that are being handed over.
const LONGEST_ARRIVAL: Duration = Duration::from_secs(10);

/// Where a partition is served, of the shards of this node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum TabletPlace {
    /// On this shard, or not on this node.
    Here,
    /// On this shard, as soon as another shard has handed the tablet over.
    Arriving,
    /// On another shard.
    Elsewhere,
}

/// The tablets that move between this shard and others.
#[derive(Default)]
pub(crate) struct ShardMoves {
    /// Whether there are any. Requests look at this first.
    any: Cell<bool>,
    /// The tablets that another shard serves, although requests may still come here.
    elsewhere: RefCell<Vec<(TableId, PartitionRange)>>,
    expected: RefCell<Vec<Expected>>,
    arrived: Notify,
    /// Where the logs of other shards begin in this run, as far as tablets came from them.
    logs: RefCell<Vec<Position>>,
}

/// A tablet that another shard hands over to this one.
struct Expected {
    table: TableId,
    tablet: TabletRange,
    /// Delays a removal of the table once the sstables are noted.
    noted: Option<GateGuard>,
}

impl ShardMoves {
    fn update(&self) {
        self.any.set(!self.elsewhere.borrow().is_empty() || !self.expected.borrow().is_empty());
    }

    /// Notes that the sstables of an expected tablet are known, with the guard of its table, or
    /// that they are not. Returns whether the tablet is expected.
    pub fn note(&self, table: TableId, tablet: &TabletRange, noted: Option<GateGuard>) -> bool {
        let is_noted = {
            let mut expected = self.expected.borrow_mut();
            let known = expected.iter_mut().find(|one| one.table == table && one.tablet == *tablet);
            known.map(|known| known.noted = noted).is_some()
        };
        self.arrived.notify_waiters();
        is_noted
    }

    /// Whether the sstables of an expected tablet of a table are known: it is about to arrive.
    fn is_taking(&self, table: TableId) -> bool {
        self.expected.borrow().iter().any(|one| one.table == table && one.noted.is_some())
    }

    /// An expected tablet is here: the requests that wait for it continue.
    pub fn arrive(&self, table: TableId, tablet: &TabletRange) {
        self.expected.borrow_mut().retain(|one| one.table != table || one.tablet != *tablet);
        self.update();
        self.arrived.notify_waiters();
    }

    /// Adds logs of other shards: where the intervals begin.
    pub fn add_logs(&self, intervals: &[Interval]) {
        let mut logs = self.logs.borrow_mut();
        for begun in intervals.iter().map(|interval| interval.first) {
            if !logs.contains(&begun) {
                logs.push(begun);
            }
        }
    }

    fn place_of(&self, table: TableId, is_within: impl Fn(&PartitionRange) -> bool) -> TabletPlace {
        let (elsewhere, expected) = (self.elsewhere.borrow(), self.expected.borrow());
        if elsewhere.iter().any(|(of, range)| *of == table && is_within(range)) {
            return TabletPlace::Elsewhere;
        }
        match expected.iter().any(|one| one.table == table && is_within(&one.tablet.range)) {
            true => TabletPlace::Arriving,
            false => TabletPlace::Here,
        }
    }
}

impl Engine {
    /// Sets which tablets of a table other shards of this node serve, although coordinators with
    /// older metadata may send requests for them to this shard.
    pub fn set_tablets_elsewhere(&self, table: TableId, ranges: impl IntoIterator<Item = PartitionRange>) {
        let moves = self.shard_moves();
        {
            let mut elsewhere = moves.elsewhere.borrow_mut();
            elsewhere.retain(|(of, _)| *of != table);
            elsewhere.extend(ranges.into_iter().map(|range| (table, range)));
        }
        moves.update();
    }

    /// Has requests for a tablet wait until another shard has handed it over.
    pub fn expect_tablet(&self, table: TableId, tablet: TabletRange) {
        debug_assert!(!self.tablets_of(table).contains(&tablet.id), "a shard expects tablets that it does not have");
        self.shard_moves().expected.borrow_mut().push(Expected { table, tablet, noted: None });
        self.shard_moves().update();
    }

    /// The tablets of a table that other shards hand over to this one.
    pub fn expected_tablets(&self, table: TableId) -> Vec<u32> {
        let expected = self.shard_moves().expected.borrow();
        expected.iter().filter(|one| one.table == table).map(|one| one.tablet.id).collect()
    }

    /// Forgets the tablets of a table that is dropped, except those that have been noted: the drop
    /// waits for them.
    pub fn forget_shard_moves(&self, table: TableId) {
        self.shard_moves().elsewhere.borrow_mut().retain(|(of, _)| *of != table);
        self.shard_moves().expected.borrow_mut().retain(|one| one.table != table || one.noted.is_some());
        self.shard_moves().update();
        self.shard_moves().arrived.notify_waiters();
    }

    /// Whether tablets move between this shard and others.
    #[inline]
    pub fn moves_between_shards(&self) -> bool {
        self.shard_moves().any.get()
    }

    /// The parts of all logs of this run that may have records of a tablet.
    pub(crate) fn logs_of(&self, tablet: &Tablet) -> Vec<Interval> {
        let mut logs = tablet.earlier_logs.borrow().clone();
        // The tablet may have been here before.
        logs.retain(|earlier| earlier.first != self.log_begun());
        // The next record has the position of the log.
        logs.push(Interval { first: self.log_begun(), last: self.log().position().before() });
        logs
    }

    /// Whether records at this position were logged in this run, by this shard or by one that has
    /// handed over a tablet.
    pub(crate) fn is_of_this_run(&self, position: Position) -> bool {
        let is_in = |begun: &Position| same_log(*begun, position) && position >= *begun;
        is_in(&self.log_begun()) || self.shard_moves().logs.borrow().iter().any(is_in)
    }

    /// Where a partition is served, of the shards of this node.
    pub fn place_of(&self, table: TableId, key: &DecoratedKey) -> TabletPlace {
        self.shard_moves().place_of(table, |range| range.contains(key))
    }

    /// Where a range is served, of the shards of this node. If several tablets have parts of it,
    /// one that is served elsewhere or arrives decides.
    pub fn place_of_range(&self, table: TableId, range: &PartitionRange) -> TabletPlace {
        self.shard_moves().place_of(table, |of_tablet| of_tablet.intersection(range).is_some())
    }

    /// Keeps tablets of a table from leaving this shard for others, and from coming from others,
    /// until [`Engine::release_tablets`]. Waits, for a limited time, for those that are in between.
    /// A snapshot does this on all shards before any of them links sstables: the sstables of a
    /// tablet that is handed over belong to no shard.
    pub async fn hold_tablets(&self, table: TableId) {
        let Some(table) = self.table(table) else { return };
        table.tablets_held.set(table.tablets_held.get() + 1);
        let (left, until) = (table.handing.earlier_have_left(), Deadline::after(LONGEST_ARRIVAL));
        let id = table.schema().id;
        let mut all_settled = until.limit(left).await.is_ok();
        while self.shard_moves().is_taking(id) && all_settled {
            all_settled = until.limit(self.tablet_arrival()).await.is_ok();
        }
        if !all_settled {
            tracing::warn!(dir = %table.dir.display(), "a tablet does not arrive at its new shard: a snapshot may lack it");
        }
    }

    /// Ends [`Engine::hold_tablets`].
    pub fn release_tablets(&self, table: TableId) {
        if let Some(table) = self.table(table) {
            table.tablets_held.set(table.tablets_held.get().saturating_sub(1));
        }
    }

    /// Waits until an expected tablet is here, or is no longer expected.
    pub async fn tablet_arrival(&self) {
        self.shard_moves().arrived.notified().await;
    }
}
