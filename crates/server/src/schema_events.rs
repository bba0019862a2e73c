//! The events about the schema that clients receive: the difference between two versions of the
//! metadata. Every node sends them to its own clients, whichever node got the statement.

use crate::connection::Server;
use crate::events;
use crate::protocol::Event;
use cluster::metadata::Keyspace;
use cluster::{Metadata, MetadataService};
use cql::Processor;
use cql::api::{SchemaAction, SchemaChange, SchemaTarget};
use rt::shard::PerShard;
use std::rc::Rc;

/// Starts sending events about the schema. On shard 0.
pub fn begin(metadata: &MetadataService, servers: PerShard<Server<Processor>>) {
    metadata.on_change(move |before, after| {
        let events = of_change(before, after);
        if !events.is_empty() {
            rt::task::spawn(events::broadcast(servers, events)).detach();
        }
    });
}

/// The events for a change.
fn of_change(before: &Metadata, after: &Metadata) -> Vec<Event> {
    let mut events = Vec::new();
    for (name, keyspace) in after.keyspaces.iter() {
        let known = before.keyspaces.get(name);
        let mut tell = |action, target| events.push(event(action, target, name));
        match known {
            None => tell(SchemaAction::Created, SchemaTarget::Keyspace),
            Some(known) if Rc::ptr_eq(known, keyspace) => continue,
            Some(known) if known.definition != keyspace.definition => {
                tell(SchemaAction::Updated, SchemaTarget::Keyspace)
            }
            Some(_) => {}
        }
        within(known, keyspace, tell);
    }
    for name in before.keyspaces.keys().filter(|name| !after.keyspaces.contains_key(*name)) {
        events.push(event(SchemaAction::Dropped, SchemaTarget::Keyspace, name));
    }
    events
}

fn event(action: SchemaAction, target: SchemaTarget, keyspace: &str) -> Event {
    Event::Schema(SchemaChange { action, target, keyspace: keyspace.to_owned() })
}

/// Types come before the tables that use them, and dropped objects come last.
fn within(before: Option<&Rc<Keyspace>>, after: &Keyspace, mut tell: impl FnMut(SchemaAction, SchemaTarget)) {
    for (name, ty) in &after.types {
        match before.and_then(|before| before.types.get(name)) {
            None => tell(SchemaAction::Created, SchemaTarget::Type(name.clone())),
            Some(known) if known != ty => tell(SchemaAction::Updated, SchemaTarget::Type(name.clone())),
            Some(_) => {}
        }
    }
    for (name, table) in after.tables.iter() {
        match before.and_then(|before| before.tables.get(name)) {
            None => tell(SchemaAction::Created, SchemaTarget::Table(name.clone())),
            // A table with another id under the same name was dropped and created again.
            Some(known) if known.schema.id != table.schema.id => {
                tell(SchemaAction::Dropped, SchemaTarget::Table(name.clone()));
                tell(SchemaAction::Created, SchemaTarget::Table(name.clone()));
            }
            // The placement of tablets is not part of the schema.
            Some(known) if known.schema.version != table.schema.version => {
                tell(SchemaAction::Updated, SchemaTarget::Table(name.clone()));
            }
            Some(_) => {}
        }
    }
    let Some(before) = before else { return };
    for name in before.tables.keys().filter(|name| !after.tables.contains_key(*name)) {
        tell(SchemaAction::Dropped, SchemaTarget::Table(name.clone()));
    }
    for name in before.types.keys().filter(|name| !after.types.contains_key(*name)) {
        tell(SchemaAction::Dropped, SchemaTarget::Type(name.clone()));
    }
}
