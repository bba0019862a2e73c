//! EVENT frames.

use super::write;
use bytes::BufMut;
use cql::api::{SchemaAction, SchemaChange, SchemaTarget};
use std::net::SocketAddr;

/// A kind of event for which a client can register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum EventKind {
    TopologyChange = 1,
    StatusChange = 2,
    SchemaChange = 4,
}

impl EventKind {
    /// The kind with this name in the protocol.
    pub fn from_name(name: &str) -> Option<EventKind> {
        [EventKind::TopologyChange, EventKind::StatusChange, EventKind::SchemaChange]
            .into_iter()
            .find(|kind| kind.name() == name)
    }

    /// Its name in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            EventKind::TopologyChange => "TOPOLOGY_CHANGE",
            EventKind::StatusChange => "STATUS_CHANGE",
            EventKind::SchemaChange => "SCHEMA_CHANGE",
        }
    }
}

/// A set of event kinds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EventKinds(u8);

impl EventKinds {
    /// Adds a kind.
    pub fn add(&mut self, kind: EventKind) {
        self.0 |= kind as u8;
    }

    /// Adds all kinds of `other`.
    pub fn add_all(&mut self, other: EventKinds) {
        self.0 |= other.0;
    }

    /// Whether `kind` is in the set.
    pub fn has(self, kind: EventKind) -> bool {
        self.0 & kind as u8 != 0
    }
}

/// An event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// The schema changed.
    Schema(SchemaChange),
    /// A node became reachable or unreachable for clients.
    Status {
        /// True if it became reachable.
        up: bool,
        /// The address for clients.
        node: SocketAddr,
    },
    /// A node joined or left.
    Topology {
        /// True if it joined.
        joined: bool,
        /// The address for clients.
        node: SocketAddr,
    },
}

impl Event {
    /// Its kind.
    pub fn kind(&self) -> EventKind {
        match self {
            Event::Schema(_) => EventKind::SchemaChange,
            Event::Status { .. } => EventKind::StatusChange,
            Event::Topology { .. } => EventKind::TopologyChange,
        }
    }

    /// Appends the body of the EVENT frame.
    pub fn write(&self, out: &mut impl BufMut) {
        write::string(out, self.kind().name());
        match self {
            Event::Schema(change) => schema_change(out, change),
            Event::Status { up, node } => {
                write::string(out, if *up { "UP" } else { "DOWN" });
                write::inet(out, *node);
            }
            Event::Topology { joined, node } => {
                write::string(out, if *joined { "NEW_NODE" } else { "REMOVED_NODE" });
                write::inet(out, *node);
            }
        }
    }
}

/// Appends a schema change, in the format that results and events share.
pub fn schema_change(out: &mut impl BufMut, change: &SchemaChange) {
    write::string(
        out,
        match change.action {
            SchemaAction::Created => "CREATED",
            SchemaAction::Updated => "UPDATED",
            SchemaAction::Dropped => "DROPPED",
        },
    );
    let (target, name) = match &change.target {
        SchemaTarget::Keyspace => ("KEYSPACE", None),
        SchemaTarget::Table(name) => ("TABLE", Some(name)),
        SchemaTarget::Type(name) => ("TYPE", Some(name)),
    };
    write::string(out, target);
    write::string(out, &change.keyspace);
    if let Some(name) = name {
        write::string(out, name);
    }
}
