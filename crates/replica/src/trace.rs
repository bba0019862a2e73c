//! The record of one traced request's steps, gathered where they happen and written when the request is answered.

use std::cell::RefCell;
use std::net::IpAddr;
use uuid::Uuid;

/// A step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceEvent {
    /// Microseconds since the request came in.
    pub elapsed_micros: u32,
    /// The node where it happened, if that was another one than the request's own. Who absorbs a step knows; it does not travel.
    pub node: Option<IpAddr>,
    /// The shard where it happened.
    pub shard: u16,
    /// What happened.
    pub activity: String,
}

/// A traced request on its way.
#[derive(Debug)]
pub struct Trace {
    /// The session's id, a time UUID.
    pub id: Uuid,
    started: rt::time::Instant,
    events: RefCell<Vec<TraceEvent>>,
}

impl Trace {
    /// A trace that begins now.
    pub fn new(id: Uuid) -> Self {
        Trace { id, started: rt::time::now(), events: RefCell::default() }
    }

    /// Records a step.
    pub fn event(&self, activity: impl Into<String>) {
        let (elapsed_micros, shard) = (self.elapsed_micros(), rt::shard::this().0);
        self.events.borrow_mut().push(TraceEvent { elapsed_micros, node: None, shard, activity: activity.into() });
    }

    /// Adds steps that were recorded at another shard, perhaps one of another node, `at` microseconds into this trace.
    pub fn absorb(&self, at: u32, node: Option<IpAddr>, events: impl IntoIterator<Item = TraceEvent>) {
        let later = |event: TraceEvent| TraceEvent { elapsed_micros: event.elapsed_micros + at, node, ..event };
        self.events.borrow_mut().extend(events.into_iter().map(later));
    }

    /// Microseconds since it began.
    pub fn elapsed_micros(&self) -> u32 {
        self.started.elapsed().as_micros().min(u32::MAX as u128) as u32
    }

    /// The steps so far.
    pub fn take_events(&self) -> Vec<TraceEvent> {
        self.events.take()
    }
}
