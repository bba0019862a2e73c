//! The record of one traced request's steps, gathered where they happen and written when the request is answered.

use std::cell::RefCell;
use uuid::Uuid;

/// A step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceEvent {
    /// Microseconds since the request came in.
    pub elapsed_micros: u32,
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
        let event =
            TraceEvent { elapsed_micros: self.elapsed_micros(), shard: rt::shard::this().0, activity: activity.into() };
        self.events.borrow_mut().push(event);
    }

    /// Adds steps that were recorded at another shard, `at` microseconds into this trace.
    pub fn absorb(&self, at: u32, events: impl IntoIterator<Item = TraceEvent>) {
        let later = |event: TraceEvent| TraceEvent { elapsed_micros: event.elapsed_micros + at, ..event };
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
