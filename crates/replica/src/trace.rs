//! The events of one traced request. They are recorded where they happen, and stored after the
//! request is answered.

use std::cell::RefCell;
use std::net::IpAddr;
use uuid::Uuid;

/// An event of a trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceEvent {
    /// Microseconds since the request came in.
    pub elapsed_micros: u32,
    /// The node where it happened, if it was not the coordinator. Set where the coordinator absorbs
    /// the event; it is not part of the wire form.
    pub node: Option<IpAddr>,
    /// The shard where it happened.
    pub shard: u16,
    /// What happened.
    pub activity: String,
}

/// The trace of a request.
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

    /// Records an event.
    pub fn event(&self, activity: impl Into<String>) {
        let (elapsed_micros, shard) = (self.elapsed_micros(), rt::shard::this().0);
        self.events.borrow_mut().push(TraceEvent { elapsed_micros, node: None, shard, activity: activity.into() });
    }

    /// Adds events that another shard recorded, possibly of another node. `at`: the microseconds of
    /// this trace at which the request was sent there.
    pub fn absorb(&self, at: u32, node: Option<IpAddr>, events: impl IntoIterator<Item = TraceEvent>) {
        let later = |event: TraceEvent| TraceEvent { elapsed_micros: event.elapsed_micros + at, node, ..event };
        self.events.borrow_mut().extend(events.into_iter().map(later));
    }

    /// Microseconds since it began.
    pub fn elapsed_micros(&self) -> u32 {
        self.started.elapsed().as_micros().min(u32::MAX as u128) as u32
    }

    /// Takes the events recorded so far.
    pub fn take_events(&self) -> Vec<TraceEvent> {
        self.events.take()
    }
}
